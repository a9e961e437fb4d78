"""GGML through ctypes: the kernels, thread pools and copies that the plugin uses, from the same libraries.

Needs nothing but the standard library, so that it also runs on a machine where only the plugin was copied to.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

TYPE_F32, TYPE_I8, TYPE_I32 = 0, 24, 26
_DEVICE_CPU, _GPU_TYPES = 0, (1, 2)
_USAGE_WEIGHTS = 1  # GGML_BACKEND_BUFFER_USAGE_WEIGHTS


class GgmlError(RuntimeError):
    """GGML could not do it; the message names what."""


class InitParams(ctypes.Structure):
    """struct ggml_init_params."""

    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


class GgufParams(ctypes.Structure):
    """struct gguf_init_params."""

    _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]


class ThreadpoolParams(ctypes.Structure):
    """struct ggml_threadpool_params."""

    _fields_ = [
        ("cpumask", ctypes.c_bool * 512),
        ("n_threads", ctypes.c_int),
        ("prio", ctypes.c_int),
        ("poll", ctypes.c_uint32),
        ("strict_cpu", ctypes.c_bool),
        ("paused", ctypes.c_bool),
    ]


_P, _S, _I, _L, _TEXT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int64, ctypes.c_char_p
_BASE: dict[str, tuple[Any, list[Any]]] = {
    "ggml_version": (_TEXT, []),
    "ggml_init": (_P, [InitParams]),
    "ggml_free": (None, [_P]),
    "ggml_tensor_overhead": (_S, []),
    "ggml_graph_overhead_custom": (_S, [_S, ctypes.c_bool]),
    "ggml_new_tensor_3d": (_P, [_P, _I, _L, _L, _L]),
    "ggml_nbytes": (_S, [_P]),
    "ggml_get_data": (_P, [_P]),
    "ggml_type_name": (_TEXT, [_I]),
    "ggml_mul_mat_id": (_P, [_P, _P, _P, _P]),
    "ggml_swiglu": (_P, [_P, _P]),
    "ggml_swiglu_split": (_P, [_P, _P, _P]),
    "ggml_silu": (_P, [_P, _P]),
    "ggml_new_graph_custom": (_P, [_P, _S, ctypes.c_bool]),
    "ggml_build_forward_expand": (None, [_P, _P]),
    "ggml_threadpool_params_default": (ThreadpoolParams, [_I]),
    "ggml_backend_alloc_ctx_tensors": (_P, [_P, _P]),
    "ggml_backend_buft_alloc_buffer": (_P, [_P, _S]),
    "ggml_backend_buft_get_alloc_size": (_S, [_P, _P]),
    "ggml_backend_buft_name": (_TEXT, [_P]),
    "ggml_backend_buffer_get_type": (_P, [_P]),
    "ggml_backend_buffer_get_base": (_P, [_P]),
    "ggml_backend_buffer_get_alignment": (_S, [_P]),
    "ggml_backend_buffer_set_usage": (None, [_P, _I]),
    "ggml_backend_buffer_free": (None, [_P]),
    "ggml_backend_tensor_alloc": (_I, [_P, _P, _P]),
    "ggml_backend_tensor_set": (None, [_P, _P, _S, _S]),
    "ggml_backend_tensor_set_async": (None, [_P, _P, _P, _S, _S]),
    "ggml_backend_tensor_get": (None, [_P, _P, _S, _S]),
    "ggml_backend_synchronize": (None, [_P]),
    "ggml_backend_graph_compute": (_I, [_P, _P]),
    "ggml_backend_graph_compute_async": (_I, [_P, _P]),
    "ggml_backend_free": (None, [_P]),
    "ggml_backend_dev_init": (_P, [_P, _TEXT]),
    "ggml_backend_dev_name": (_TEXT, [_P]),
    "ggml_backend_dev_description": (_TEXT, [_P]),
    "ggml_backend_dev_type": (_I, [_P]),
    "ggml_backend_dev_memory": (None, [_P, ctypes.POINTER(_S), ctypes.POINTER(_S)]),
    "ggml_backend_dev_buffer_type": (_P, [_P]),
    "ggml_backend_dev_host_buffer_type": (_P, [_P]),
    "ggml_backend_dev_backend_reg": (_P, [_P]),
    "ggml_backend_reg_get_proc_address": (_P, [_P, _TEXT]),
    "gguf_init_from_file": (_P, [_TEXT, GgufParams]),
    "gguf_free": (None, [_P]),
    "gguf_find_key": (_L, [_P, _TEXT]),
    "gguf_get_val_str": (_TEXT, [_P, _L]),
    "gguf_get_val_u16": (ctypes.c_uint16, [_P, _L]),
    "gguf_get_val_u32": (ctypes.c_uint32, [_P, _L]),
    "gguf_get_kv_type": (_I, [_P, _L]),
    "gguf_get_n_tensors": (_L, [_P]),
    "gguf_get_tensor_name": (_TEXT, [_P, _L]),
    "gguf_get_tensor_type": (_I, [_P, _L]),
    "gguf_get_tensor_ne": (ctypes.POINTER(_L), [_P, _L]),
    "gguf_get_tensor_size": (_S, [_P, _L]),
    "gguf_get_tensor_offset": (_S, [_P, _L]),
    "gguf_get_data_offset": (_S, [_P]),
}
_REGISTRY: dict[str, tuple[Any, list[Any]]] = {
    "ggml_backend_load_all_from_path": (None, [_TEXT]),
    "ggml_backend_dev_count": (_S, []),
    "ggml_backend_dev_get": (_P, [_S]),
}


class Ggml:
    """The functions of one llama.cpp build as attributes, its backends loaded. Raises GgmlError if they cannot be."""

    def __init__(self, library_dir: Path) -> None:
        try:
            base = ctypes.CDLL(str(library_dir / "libggml-base.so.0"))
            registry = ctypes.CDLL(str(library_dir / "libggml.so.0"))
        except OSError as error:
            raise GgmlError(f"the llama.cpp libraries in {library_dir} cannot be loaded: {error}") from None
        for library, table in ((base, _BASE), (registry, _REGISTRY)):
            for name, (result, arguments) in table.items():
                try:
                    function = getattr(library, name)
                except AttributeError:
                    raise GgmlError(f"the ggml in {library_dir} has no {name}: it is another version") from None
                function.restype, function.argtypes = result, arguments
                setattr(self, name, function)
        if self.ggml_backend_dev_count() == 0:
            self.ggml_backend_load_all_from_path(str(library_dir).encode())
        cpu = self._device((_DEVICE_CPU,))
        if cpu is None:
            raise GgmlError(f"the llama.cpp build in {library_dir} has no CPU backend")
        self.cpu = cpu
        self.gpu = self._device(_GPU_TYPES)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the functions set above, for the type checker
        raise AttributeError(name)

    def _device(self, kinds: tuple[int, ...]) -> int | None:
        """The first device of these types that is none of this project's own (GGML_BACKEND_PATH may load it)."""
        devices = [self.ggml_backend_dev_get(i) for i in range(self.ggml_backend_dev_count())]
        stock = [d for d in devices if not self.ggml_backend_dev_name(d).startswith(b"MoECache")]
        return next((d for d in stock if self.ggml_backend_dev_type(d) in kinds), None)

    @property
    def version(self) -> str:
        text: bytes = self.ggml_version()
        return text.decode()

    def device_name(self, device: int) -> str:
        text: bytes = self.ggml_backend_dev_description(device)
        return text.decode()

    def free_bytes(self, device: int) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
        return free.value

    def backend(self, device: int) -> int:
        """A backend of `device`. Raises GgmlError."""
        backend: int | None = self.ggml_backend_dev_init(device, None)
        if backend is None:
            raise GgmlError(f"GGML could not start a backend on {self.device_name(device)}")
        return backend

    def context(self, n_tensors: int, n_nodes: int = 0) -> int:
        """A context without memory for data: for tensors, and one graph of `n_nodes` nodes if there are any."""
        n_bytes = (n_tensors + 1) * self.ggml_tensor_overhead()
        if n_nodes:
            n_bytes += self.ggml_graph_overhead_custom(n_nodes, False)
        context: int | None = self.ggml_init(InitParams(n_bytes, None, True))
        if context is None:
            raise GgmlError(f"GGML could not make a context of {n_bytes} bytes")
        return context

    def allocate(self, buffer_type: int, n_bytes: int) -> int:
        """A buffer. Raises GgmlError if there is no memory for it."""
        buffer: int | None = self.ggml_backend_buft_alloc_buffer(buffer_type, n_bytes)
        if buffer is None:
            name = self.ggml_backend_buft_name(buffer_type).decode()
            raise GgmlError(f"{n_bytes / 2**20:.0f} MiB of {name} memory cannot be had")
        return buffer

    def pinned_type(self) -> int | None:
        """Buffer type of pinned memory of the GPU, None where there is none."""
        kind: int | None = None if self.gpu is None else self.ggml_backend_dev_host_buffer_type(self.gpu)
        return kind

    def is_pinned(self, buffer: int) -> bool:
        """The CUDA host type silently gives ordinary memory when pinning fails; the buffer's own type tells."""
        wanted = self.pinned_type()
        return wanted is not None and self.ggml_backend_buffer_get_type(buffer) == wanted

    def mark_as_weights(self, buffer: int) -> None:
        self.ggml_backend_buffer_set_usage(buffer, _USAGE_WEIGHTS)


class CpuBackend:
    """A CPU backend with a thread pool of its own, set up as ggml_moecache/backend/host-compute.cpp does it."""

    def __init__(self, ggml: Ggml, n_threads: int) -> None:
        self._ggml = ggml
        self.address = ggml.backend(ggml.cpu)
        registry = ggml.ggml_backend_dev_backend_reg(ggml.cpu)

        def function(name: str, result: Any, *arguments: Any) -> Any:  # noqa: ANN401 - ctypes
            address = ggml.ggml_backend_reg_get_proc_address(registry, name.encode())
            if address is None:
                raise GgmlError(f"GGML's CPU backend has no {name}")
            return ctypes.CFUNCTYPE(result, *arguments)(address)

        params = ggml.ggml_threadpool_params_default(n_threads)
        pointer = ctypes.POINTER(ThreadpoolParams)
        self._pool = function("ggml_threadpool_new", ctypes.c_void_p, pointer)(ctypes.byref(params))
        self._free_pool = function("ggml_threadpool_free", None, ctypes.c_void_p)
        if self._pool is None:
            raise GgmlError(f"GGML could not start {n_threads} CPU threads")
        function("ggml_backend_cpu_set_threadpool", None, ctypes.c_void_p, ctypes.c_void_p)(self.address, self._pool)
        function("ggml_backend_set_n_threads", None, ctypes.c_void_p, ctypes.c_int)(self.address, n_threads)

    def close(self) -> None:
        self._ggml.ggml_backend_free(self.address)
        self._free_pool(self._pool)
