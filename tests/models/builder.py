"""Writes the tensors and metadata of one tiny model; the families say which ones.

Each tensor has its own random stream, seeded by the model's seed and the tensor's name: a tensor keeps its values when
others are added before it, and the same weights come out in every type.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, quants

from tests.models.geometry import Geometry
from tests.models.routing import FloatArray, PlantedRouting
from tests.models.tokenizer import load_tokenizer


class ModelBuilder:
    """One GGUF file in the making. Shapes are numpy's: (rows, columns), the last one is ggml's ne[0]."""

    def __init__(self, path: Path, arch: str, geometry: Geometry, weight_type: GGMLQuantizationType, seed: int) -> None:
        self.geometry = geometry
        self.routing = PlantedRouting(geometry, seed)
        self.keys = gguf.GGUFWriter(path, arch)
        self._arch = arch
        self._type = weight_type
        self._seed = seed
        self._write_common_keys()
        self._write_tokenizer()

    def close(self) -> None:
        """Write header, metadata and tensors and close the file."""
        self.keys.write_header_to_file()
        self.keys.write_kv_data_to_file()
        self.keys.write_tensors_to_file()
        self.keys.close()

    def embeddings(self) -> None:
        """Token embedding with the planted levels, final norm and output matrix."""
        geometry = self.geometry
        table = self._normal("token_embd.weight", (geometry.n_vocab, geometry.n_embd))
        self.routing.write_levels(table)
        exact = GGMLQuantizationType.F32 if self._type == GGMLQuantizationType.F32 else GGMLQuantizationType.F16
        self._add("token_embd.weight", table, exact)
        self.norm("output_norm.weight", geometry.n_embd)
        self.matrix("output.weight", geometry.n_vocab, geometry.n_embd)

    def norm(self, name: str, n: int) -> None:
        """Norm weights around 1; exactly 1 at the routing channels."""
        weights = 1 + 0.1 * self._normal(name, (n,))
        if n == self.geometry.n_embd:
            weights[self.routing.channels] = 1
        self._add(name, weights, GGMLQuantizationType.F32)

    def vector(self, name: str, *shape: int, scale: float, mean: float = 0.0, residual: bool = False) -> None:
        """Small F32 tensor: a bias, a scale, a convolution. `residual` as in `matrix`, for the last axis."""
        values = mean + scale * self._normal(name, shape)
        if residual:
            values[..., self.routing.channels] = 0
        self._add(name, values, GGMLQuantizationType.F32)

    def values(self, name: str, values: FloatArray) -> None:
        """F32 tensor with the given values."""
        self._add(name, values, GGMLQuantizationType.F32)

    def matrix(self, name: str, *shape: int, residual: bool = False, gain: float = 1.0) -> None:
        """Weights (..., rows, columns) in the model's type, scaled so that unit input gives output of size `gain`.

        `residual`: the rows are added to the residual stream, so those at the routing channels are zero.
        """
        weights = self._normal(name, shape) * np.float32(gain / np.sqrt(shape[-1]))
        if residual:
            weights[..., self.routing.channels, :] = 0
        self._add(name, weights, self._type)

    def router(self, layer: int) -> None:
        """The planted router of a layer, F32 as llama.cpp keeps it."""
        self._add(f"blk.{layer}.ffn_gate_inp.weight", self.routing.router(layer), GGMLQuantizationType.F32)

    def _normal(self, name: str, shape: tuple[int, ...]) -> FloatArray:
        rng = np.random.default_rng([self._seed, zlib.crc32(name.encode())])
        return rng.standard_normal(shape, dtype=np.float32)

    def _add(self, name: str, values: npt.NDArray[np.floating], kind: GGMLQuantizationType) -> None:
        values = np.ascontiguousarray(values, np.float32)
        if kind == GGMLQuantizationType.F32:
            self.keys.add_tensor(name, values)
        else:
            self.keys.add_tensor(name, quants.quantize(values, kind), raw_dtype=kind)

    def _write_common_keys(self) -> None:
        geometry, keys = self.geometry, self.keys
        keys.add_name("random test model")
        keys.add_block_count(geometry.n_layer + geometry.n_mtp_layer)
        keys.add_context_length(geometry.n_ctx_train)
        keys.add_embedding_length(geometry.n_embd)
        keys.add_head_count(geometry.n_head)
        keys.add_layer_norm_rms_eps(1e-6)
        keys.add_rope_freq_base(1e6)
        if geometry.n_expert:
            keys.add_expert_count(geometry.n_expert)
            keys.add_expert_used_count(geometry.top_k)

    def _write_tokenizer(self) -> None:
        tokenizer = load_tokenizer()
        if len(tokenizer.tokens) != self.geometry.n_vocab:
            raise ValueError(
                f"the tokenizer has {len(tokenizer.tokens)} tokens, the geometry says {self.geometry.n_vocab}"
            )
        keys = self.keys
        keys.add_tokenizer_model(tokenizer.model)
        keys.add_tokenizer_pre(tokenizer.pre)
        keys.add_token_list(tokenizer.tokens)
        keys.add_token_types(tokenizer.types)
        keys.add_token_merges(tokenizer.merges)
        keys.add_bos_token_id(tokenizer.end_of_text)
        keys.add_eos_token_id(tokenizer.end_of_text)
