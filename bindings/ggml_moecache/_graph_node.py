"""The nodes of llama.cpp's graphs as an eval callback is given them."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from ggml_moecache import _native
from ggml_moecache._plugin import loaded_library
from ggml_moecache.errors import BackendError

_TYPES: dict[int, Any] = {0: np.float32, 26: np.int32}  # GGML_TYPE_F32, GGML_TYPE_I32
_OBJECT_BYTES = 32  # sizeof(struct ggml_object), which ggml_tensor_overhead adds to that of a tensor


class Node(ctypes.Structure):
    """struct ggml_tensor of ggml 0.25.3."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10),
        ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("raw_name", ctypes.c_char * 64),
        ("extra", ctypes.c_void_p),
        ("padding", ctypes.c_char * 8),
    ]

    @property
    def name(self) -> str:
        text: bytes = self.raw_name
        return text.decode(errors="replace")

    def source(self, index: int) -> Node | None:
        """The node's operand, None if it has none there."""
        address = self.src[index]
        return Node.from_address(address) if address else None


class NodeReader:
    """Reads values of nodes, wherever they lie. Raises BackendError if the loaded ggml has other tensors than Node."""

    def __init__(self) -> None:
        base = loaded_library("libggml-base.so.0")
        base.ggml_tensor_overhead.restype = ctypes.c_size_t
        if base.ggml_tensor_overhead() != _OBJECT_BYTES + ctypes.sizeof(Node):
            raise BackendError(f"the tensors of the loaded ggml are not those of ggml {_native.ggml_version}")
        base.ggml_backend_tensor_get.restype = None
        base.ggml_backend_tensor_get.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
        self._get = base.ggml_backend_tensor_get

    def rows(self, node: Node, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """The `rows` of a matrix of F32 or I32 with dense rows: (len(rows), ne[0]). REQUIRES: its data are computed."""
        values = np.empty((len(rows), node.ne[0]), _TYPES[node.type])
        for target, row in zip(values, rows.tolist(), strict=True):
            self._get(ctypes.addressof(node), target.ctypes.data, row * node.nb[1], target.nbytes)
        return values
