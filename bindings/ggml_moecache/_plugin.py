"""The plugin in this process: GGML's registry and the C API of libggml-moecache.so, through ctypes.

llama-cpp-python loads llama.cpp's libraries privately (RTLD_LOCAL), so they are reached here by the names under which
they are loaded, never by a path: a second copy would have a registry of its own.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import threading
from typing import TYPE_CHECKING, Any

from ggml_moecache import _native
from ggml_moecache._paths import backend_path
from ggml_moecache.errors import BackendError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_GPU_TYPES = (1, 2)  # GGML_BACKEND_DEVICE_TYPE_GPU and _IGPU
_registry_lock = threading.Lock()
_LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_REFUSAL = "moecache: inactive: "  # then the reason's code, a colon and the text
_refusals: list[str] = []  # what the plugin has said in this process; it says each reason once


def loaded_library(soname: str) -> ctypes.CDLL:
    """The library that llama-cpp-python has loaded under `soname`. Raises BackendError if it has not."""
    try:
        return ctypes.CDLL(soname, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError as error:
        raise BackendError(
            f"llama-cpp-python has not loaded {soname}: its llama.cpp is linked statically or of another generation. "
            f"Set LLAMA_CPP_LIB_PATH or MOECACHE_LLAMA_DIR to a shared build with ggml {_native.ggml_version}."
        ) from error


class Registry:
    """GGML's backend registry in this process. REQUIRES: llama_cpp has been imported."""

    def __init__(self) -> None:
        self._ggml = loaded_library("libggml.so.0")
        self._base = loaded_library("libggml-base.so.0")
        pointer, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
        for library, name, result, arguments in (
            (self._base, "ggml_version", text, []),
            (self._ggml, "ggml_backend_load", pointer, [text]),
            (self._ggml, "ggml_backend_load_all_from_path", None, [text]),
            (self._ggml, "ggml_backend_reg_by_name", pointer, [text]),
            (self._ggml, "ggml_backend_dev_by_name", pointer, [text]),
            (self._ggml, "ggml_backend_dev_count", size, []),
            (self._ggml, "ggml_backend_dev_get", pointer, [size]),
            (self._base, "ggml_backend_dev_name", text, [pointer]),
            (self._base, "ggml_backend_dev_description", text, [pointer]),
            (self._base, "ggml_backend_dev_type", ctypes.c_int, [pointer]),
            (self._base, "ggml_backend_dev_memory", None, [pointer, ctypes.POINTER(size), ctypes.POINTER(size)]),
        ):
            try:
                function = getattr(library, name)
            except AttributeError as error:
                raise BackendError(
                    f"the loaded ggml has no {name}: it is older than ggml {_native.ggml_version}, for which "
                    "ggml_moecache is built; install the matching llama-cpp-python: pip install 'ggml-moecache[llama]'."
                ) from error
            function.restype, function.argtypes = result, arguments

    @property
    def version(self) -> str:
        """Version of the loaded ggml, such as "0.25.3"."""
        text: bytes = self._base.ggml_version()
        return text.decode()

    def devices(self) -> Iterator[dict[str, Any]]:
        """Name, description, type and memory in MiB of each registered device."""
        for index in range(self._ggml.ggml_backend_dev_count()):
            device = self._ggml.ggml_backend_dev_get(index)
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            self._base.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
            kind = self._base.ggml_backend_dev_type(device)
            yield {
                "name": self._base.ggml_backend_dev_name(device).decode(),
                "description": self._base.ggml_backend_dev_description(device).decode(),
                "type": {0: "CPU", 1: "GPU", 2: "IGPU", 3: "ACCEL"}.get(kind, "META"),
                "is_gpu": kind in _GPU_TYPES,
                "free_mib": free.value >> 20,
                "total_mib": total.value >> 20,
            }

    def device(self, name: str) -> int | None:
        """Address of the device `name`, or None."""
        address: int | None = self._ggml.ggml_backend_dev_by_name(name.encode())
        return address

    def load_stock_backends(self, folder: Path) -> None:
        """Load llama.cpp's own backends from `folder` in a GGML_BACKEND_DL build, which has none until then."""
        with _registry_lock:
            if self._ggml.ggml_backend_dev_count() == 0:
                self._ggml.ggml_backend_load_all_from_path(str(folder).encode())

    def load_plugin(self, **settings: str) -> None:
        """Apply `settings` (variables of the plugin) and load libggml-moecache.so, once per process.

        Without a GPU the plugin is told to wrap the CPU as a stand-in device, unless GGML_MOECACHE_STANDIN is set.
        Raises BackendError with the plugin's own line if it refuses, ConfigError for a bad setting.
        """
        with _registry_lock:
            if self._ggml.ggml_backend_reg_by_name(b"MoECache"):
                _apply(settings)
                return
            if self.version != _native.ggml_version:
                raise BackendError(
                    f"ggml_moecache is built for ggml {_native.ggml_version}, this llama.cpp has ggml {self.version}. "
                    "Install ggml_moecache anew with LLAMA_CPP_DIR set to that llama.cpp's sources, or use the "
                    "matching llama-cpp-python: pip install 'ggml-moecache[llama]'.",
                    reason="ggml_version",
                )
            has_gpu = any(device["is_gpu"] for device in self.devices())
            if not has_gpu and not os.environ.get("GGML_MOECACHE_STANDIN"):
                settings = {"GGML_MOECACHE_STANDIN": "1", **settings}
            # Holds the library: GGML lets go of one that refuses, which under MOECACHE_REQUIRE=1 ends the process.
            c_api()
            _apply(settings)
            loaded, lines = self._load_and_listen(str(backend_path()))
            if not loaded:
                _refusals.extend(line for line in lines if line.startswith(_REFUSAL))
                why = _refusals[-1].removeprefix(_REFUSAL) if _refusals else "none: ggml's log on stderr says why"
                raise BackendError(f"the plugin was not loaded: {why}", reason=why.partition(":")[0])

    def _load_and_listen(self, path: str) -> tuple[bool, list[str]]:
        """Load the backend `path`; also returns the lines that ggml logged meanwhile, which still reach its logger."""
        lines: list[str] = []
        previous, user_data = _LogCallback(), ctypes.c_void_p()
        self._base.ggml_log_get(ctypes.byref(previous), ctypes.byref(user_data))

        def listen(level: int, text: bytes, _: int | None) -> None:
            lines.append(text.decode(errors="replace").strip())
            previous(level, text, user_data)

        callback = _LogCallback(listen)
        self._base.ggml_log_set(callback, None)
        try:
            return bool(self._ggml.ggml_backend_load(path.encode())), lines
        finally:
            self._base.ggml_log_set(previous, user_data)


def _apply(settings: dict[str, str]) -> None:
    for name, value in settings.items():
        config_set(name, value)


class _DlInfo(ctypes.Structure):
    _fields_ = [
        ("file_name", ctypes.c_char_p),
        ("file_base", ctypes.c_void_p),
        ("symbol_name", ctypes.c_char_p),
        ("symbol_address", ctypes.c_void_p),
    ]


class _RegistryEntry(ctypes.Structure):
    """The head of ggml_backend_reg: its version, then the first of its functions."""

    _fields_ = [("api_version", ctypes.c_int), ("get_name", ctypes.c_void_p)]


def _plugin_path() -> str:
    """The plugin that this process has loaded already (GGML_BACKEND_PATH may name another copy), else ours."""
    ggml = loaded_library("libggml.so.0")
    ggml.ggml_backend_reg_by_name.restype = ctypes.c_void_p
    entry = ggml.ggml_backend_reg_by_name(b"MoECache")
    if entry is not None:
        info = _DlInfo()
        function = ctypes.c_void_p(_RegistryEntry.from_address(entry).get_name)
        if ctypes.CDLL(None).dladdr(function, ctypes.byref(info)) and info.file_name:
            return os.fsdecode(info.file_name)
    return str(backend_path())


@functools.cache
def c_api() -> ctypes.CDLL:
    """The plugin's C API. REQUIRES: llama_cpp has been imported (the plugin resolves GGML's symbols from it)."""
    try:
        library = ctypes.CDLL(_plugin_path())
    except OSError as error:
        raise BackendError(f"{backend_path()} cannot be loaded: {error}") from error
    text, size = ctypes.c_char_p, ctypes.c_size_t
    library.moecache_config_set.restype, library.moecache_config_set.argtypes = text, [text, text]
    library.moecache_config_get.restype, library.moecache_config_get.argtypes = text, [text]
    pointer, number = ctypes.c_void_p, ctypes.c_uint64
    for name, result, arguments in (
        ("moecache_status_json", size, [text, size]),
        ("moecache_run_json", size, [text, size]),
        ("moecache_run_set", text, [text, text]),
        ("moecache_set_request_id", text, [number, number]),
        ("moecache_session_reset", text, [number]),
        ("moecache_session_freeze", text, [number, ctypes.c_int]),
        ("moecache_session_export", text, [number, text, size, pointer]),
        ("moecache_session_export_file", text, [number, text]),
        ("moecache_session_import", text, [number, text]),
        ("moecache_session_import_file", text, [number, text]),
        ("moecache_ring_open", text, [number, pointer]),
        ("moecache_ring_detach", None, [pointer]),
        ("moecache_ring_close", None, [pointer]),
        ("moecache_ring_get_info", None, [pointer, pointer]),
        ("moecache_ring_peek", size, [pointer, pointer]),
        ("moecache_ring_release", None, [pointer, size]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def config_set(name: str, value: str | None) -> None:
    """Set a variable of the plugin for this process. Raises ConfigError with the plugin's message."""
    message: bytes | None = c_api().moecache_config_set(name.encode(), None if value is None else value.encode())
    if message is not None:
        raise ConfigError(message.decode())


def config_get(name: str) -> str:
    """The value in force for a variable of the plugin. Raises ConfigError if it has no such variable."""
    value: bytes | None = c_api().moecache_config_get(name.encode())
    if value is None:
        raise ConfigError(f"{name} is no variable of the plugin; `moecache config` lists them")
    return value.decode()


def read_json(function: str) -> dict[str, Any]:
    """What a C function that fills a buffer says. It may say more at a second call: the buffer grows until it fits."""
    n_bytes = 4096
    while True:
        buffer = ctypes.create_string_buffer(n_bytes)
        needed = getattr(c_api(), function)(buffer, n_bytes)
        if needed <= n_bytes:
            state: dict[str, Any] = json.loads(buffer.value)
            return state
        n_bytes = needed


def status_json() -> dict[str, Any]:
    """The plugin's state."""
    return read_json("moecache_status_json")
