"""A graph of one or many events: n experts of a layer applied to one token, as llama.cpp builds it.

gate and up (MUL_MAT_ID), SwiGLU, down (MUL_MAT_ID). Other activations cost the same within what can be measured: they
touch some thousand numbers, the matrices some million.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from pyanalysis.calibrate.ggml import TYPE_F32, TYPE_I32, GgmlError

if TYPE_CHECKING:
    import random

    from pyanalysis.calibrate.experts import Store
    from pyanalysis.calibrate.ggml import Ggml

_NODES_PER_EVENT = 5  # room for 4 nodes; and for as many leaves: 3 matrices, the ids, and once the input
_TENSORS_PER_EVENT = 6


class EventGraph:
    """Events of `n_experts` experts, one for each entry of `layers` (indices into the store). `close` it.

    The memory of activations and ids is the backend's. `input` is F32 [n_embd]; `outputs` has a tensor F32
    [n_embd, n_experts] for each event, in GGML's order.
    """

    def __init__(self, ggml: Ggml, backend: int, store: Store, layers: list[int], n_experts: int) -> None:
        self._ggml = ggml
        self._layers = layers
        self._store = store
        self._n_experts = n_experts
        n_nodes = _NODES_PER_EVENT * len(layers) + 1
        self._context = ggml.context(_TENSORS_PER_EVENT * len(layers) + 1, n_nodes)
        self.graph: int = ggml.ggml_new_graph_custom(self._context, n_nodes, False)
        self._ids: list[int] = []
        self.outputs: list[int] = []
        first = store.layers[layers[0]].matrices
        n_embd = (first["gate_up"] if "gate_up" in first else first["up"]).ne[0]
        self.input = ggml.ggml_new_tensor_3d(self._context, TYPE_F32, n_embd, 1, 1)
        for layer in layers:
            self._ids.append(ggml.ggml_new_tensor_3d(self._context, TYPE_I32, n_experts, 1, 1))
            self.outputs.append(self._block(store.tensors[layer], self._ids[-1]))
            ggml.ggml_build_forward_expand(self.graph, self.outputs[-1])
        self._buffer: int | None = ggml.ggml_backend_alloc_ctx_tensors(self._context, backend)
        if self._buffer is None:
            ggml.ggml_free(self._context)
            raise GgmlError("there is no memory for the activations of an event")
        values = (ctypes.c_float * n_embd)(*((i % 7 - 3) / 4 for i in range(n_embd)))
        ggml.ggml_backend_tensor_set(self.input, values, 0, 4 * n_embd)

    def _block(self, weights: dict[str, int], ids: int) -> int:
        ggml, context = self._ggml, self._context

        def product(role: str, rows: int) -> int:
            tensor: int = ggml.ggml_mul_mat_id(context, weights[role], rows, ids)
            return tensor

        if "gate_up" in weights:
            active = ggml.ggml_swiglu(context, product("gate_up", self.input))
        elif "gate" in weights:
            active = ggml.ggml_swiglu_split(context, product("gate", self.input), product("up", self.input))
        else:
            active = ggml.ggml_silu(context, product("up", self.input))
        return product("down", active)

    def choose(self, generator: random.Random) -> list[list[int]]:
        """Draw the experts of every event anew, so that a run reads other memory than the one before; returns them."""
        n = self._n_experts
        chosen = [generator.sample(range(self._store.layers[layer].n_experts), n) for layer in self._layers]
        for ids, experts in zip(self._ids, chosen, strict=True):
            self._ggml.ggml_backend_tensor_set(ids, (ctypes.c_int32 * n)(*experts), 0, 4 * n)
        return chosen

    def close(self) -> None:
        self._ggml.ggml_backend_buffer_free(self._buffer)
        self._ggml.ggml_free(self._context)
