"""Where things are: the plugin, the embedded model, and the llama.cpp build that scripts/setup or the user provides."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ggml_moecache.errors import BackendError, ConfigError

_PACKAGE = Path(__file__).resolve().parent


def backend_path() -> Path:
    """Path of libggml-moecache.so, for GGML_BACKEND_PATH. Raises BackendError if the installation lacks it."""
    path = _PACKAGE / "lib" / "libggml-moecache.so"
    if not path.is_file():
        raise BackendError(f"{path} is missing: install the package anew (pip install . or scripts/setup)")
    return path


def embedded_model() -> Path:
    """Path of the small Qwen3.6-architecture model that is used where no model is named."""
    return _PACKAGE / "models" / "tiny-qwen35moe-Q4_0.gguf"


def _library_dir(folder: Path) -> Path | None:
    """`folder`, or its bin, lib or build/bin: the first one that holds libllama.so."""
    candidates = (folder, folder / "bin", folder / "lib", folder / "build" / "bin")
    return next((c for c in candidates if (c / "libllama.so").is_file()), None)


def llama_library_dir() -> Path | None:
    """Folder of the llama.cpp libraries to use, or None to leave it to llama-cpp-python's own.

    In this order: LLAMA_CPP_LIB_PATH (llama-cpp-python's variable), MOECACHE_LLAMA_DIR (a build of llama.cpp, its
    folder or its bin), the build that scripts/setup recorded in this virtual environment. Raises ConfigError if
    MOECACHE_LLAMA_DIR names a folder without libllama.so.
    """
    if own := os.environ.get("LLAMA_CPP_LIB_PATH"):
        return Path(own)
    if named := os.environ.get("MOECACHE_LLAMA_DIR"):
        found = _library_dir(Path(named).expanduser())
        if found is None:
            raise ConfigError(f"MOECACHE_LLAMA_DIR={named} holds no libllama.so, nor do its bin, lib and build/bin")
        return found
    record = Path(sys.prefix, "share", "ggml-moecache", "llama-dir")
    if record.is_file():
        return _library_dir(Path(record.read_text(encoding="utf-8").strip()))
    return None


def llama_bin_dir() -> Path | None:
    """Folder of llama.cpp's stock programs (llama-completion, llama-server, ...), or None if there is none."""
    folders = [llama_library_dir()]
    if folders[0] is not None:
        folders.append(folders[0].parent / "bin")  # an installed llama.cpp: lib beside bin
    folders += [Path(p) for p in os.environ.get("PATH", "").split(os.pathsep) if p]
    return next((f for f in folders if f is not None and (f / "llama-completion").is_file()), None)
