"""Shape of a tiny test model: every length the generator and the tests need, in one frozen record."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Geometry:
    """Lengths of one test model; all counts, no bytes.

    `n_embd` and `n_ff_expert` are multiples of 256, the block length of the K-quants, so that every family can be
    written in every type.
    """

    n_layer: int = 2
    n_embd: int = 256
    n_vocab: int = 4096
    n_ctx_train: int = 2048
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 64
    n_expert: int = 8
    top_k: int = 2
    n_ff_expert: int = 256
    n_ff_shared: int = 64
    n_dense_lead: int = 0
    n_group: int = 1
    n_group_used: int = 1
    n_mtp_layer: int = 0

    @property
    def moe_layers(self) -> tuple[int, ...]:
        """Indices of the layers that hold experts, the MTP layer included."""
        return tuple(range(self.n_dense_lead, self.n_layer + self.n_mtp_layer)) if self.n_expert else ()
