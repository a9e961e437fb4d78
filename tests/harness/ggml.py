"""The part of GGML's C interface that the worker needs beside llama_cpp: devices, buffer types, tensors."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


class Tensor(ctypes.Structure):
    """struct ggml_tensor of the pinned ggml; `check_layout` compares its length with the library's."""

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
        ("name", ctypes.c_char * 64),
        ("extra", ctypes.c_void_p),
        ("padding", ctypes.c_char * 8),
    ]


class BufferTypeOverride(ctypes.Structure):
    """struct llama_model_tensor_buft_override."""

    _fields_ = [("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p)]


# sizeof(struct ggml_object), which ggml_tensor_overhead adds to the tensor's own length.
OBJECT_BYTES = 32
NUMPY_TYPES: dict[int, Any] = {0: np.float32, 26: np.int32}


class Ggml:
    """libggml and libggml-base of one llama.cpp build, already loaded by llama_cpp."""

    def __init__(self, llama_bin: Path) -> None:
        self._base = ctypes.CDLL(str(llama_bin / "libggml-base.so.0"))
        self._registry = ctypes.CDLL(str(llama_bin / "libggml.so.0"))
        for name in (
            "ggml_backend_load",
            "ggml_backend_dev_by_name",
            "ggml_backend_dev_get",
            "ggml_backend_dev_by_type",
        ):
            getattr(self._registry, name).restype = ctypes.c_void_p
        self._registry.ggml_backend_dev_count.restype = ctypes.c_size_t
        self._registry.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
        self._base.ggml_backend_dev_name.restype = ctypes.c_char_p
        self._base.ggml_backend_dev_name.argtypes = [ctypes.c_void_p]
        self._base.ggml_backend_buft_name.restype = ctypes.c_char_p
        self._base.ggml_backend_buft_name.argtypes = [ctypes.c_void_p]
        self._base.ggml_backend_dev_buffer_type.restype = ctypes.c_void_p
        self._base.ggml_backend_dev_buffer_type.argtypes = [ctypes.c_void_p]
        self._base.ggml_backend_tensor_get.restype = None
        self._base.ggml_backend_tensor_get.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_size_t,
        ]
        self._base.ggml_tensor_overhead.restype = ctypes.c_size_t
        if self._base.ggml_tensor_overhead() != OBJECT_BYTES + ctypes.sizeof(Tensor):
            raise RuntimeError("struct ggml_tensor of the loaded ggml has another length than the test's copy of it")
        self._registry.ggml_backend_load_all_from_path(str(llama_bin).encode())

    def load(self, plugin: str | None) -> None:
        """Load a backend library, if one is named. Raises ValueError if GGML refuses it."""
        if plugin and not self._registry.ggml_backend_load(plugin.encode()):
            raise ValueError(f"ggml did not load the plugin {plugin}")

    def device(self, name: str) -> int | None:
        """Address of the device of that name."""
        address: int | None = self._registry.ggml_backend_dev_by_name(name.encode())
        return address

    def device_names(self) -> list[str]:
        """Names of all registered devices."""
        count = self._registry.ggml_backend_dev_count()
        addresses = [self._registry.ggml_backend_dev_get(index) for index in range(count)]
        return [self._base.ggml_backend_dev_name(address).decode() for address in addresses]

    def buffer_type(self, name: str) -> int:
        """Address of the default buffer type of that name among all devices.

        Raises ValueError if no device has it.
        """
        known = {}
        for index in range(self._registry.ggml_backend_dev_count()):
            address = self._base.ggml_backend_dev_buffer_type(self._registry.ggml_backend_dev_get(index))
            known[self._base.ggml_backend_buft_name(address).decode()] = address
        if name not in known:
            raise ValueError(f"no buffer type '{name}', there are {', '.join(known)}")
        return int(known[name])

    def read(self, address: int) -> npt.NDArray[Any]:
        """Values of an F32 or I32 tensor of at most 3 dimensions, shape (ne[2], ne[1], ne[0]), strides honoured."""
        tensor = Tensor.from_address(address)
        dtype = NUMPY_TYPES[tensor.type]
        n_column, n_row, n_plane = tensor.ne[0], tensor.ne[1], tensor.ne[2]
        values = np.empty((n_plane, n_row, n_column), dtype)
        for plane in range(n_plane):
            for row in range(n_row):
                offset = plane * tensor.nb[2] + row * tensor.nb[1]
                target = values[plane, row]
                if tensor.nb[0] != target.itemsize:
                    raise ValueError(f"tensor {tensor.name.decode()} is strided along its rows")
                self._base.ggml_backend_tensor_get(address, target.ctypes.data, offset, target.nbytes)
        return values
