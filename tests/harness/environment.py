"""Where the plugin and the llama.cpp build under test are, and the environment of the processes that use them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


class MissingBuild(RuntimeError):
    """Plugin or llama.cpp build not found; the message says how to get them."""


@dataclass(frozen=True)
class Build:
    """The two paths every test needs."""

    plugin: Path
    llama_bin: Path


def find_build() -> Build:
    """Paths from MOECACHE_PLUGIN and MOECACHE_LLAMA_BIN, else from the installed package.

    Raises MissingBuild if one of them is named by neither or does not exist.
    """
    return Build(
        _resolve("MOECACHE_PLUGIN", "backend_path", "the plugin"),
        _resolve("MOECACHE_LLAMA_BIN", "llama_bin_dir", "the folder of the llama.cpp programs"),
    )


def process_environment(build: Build, *, capacity: str | None, extra: dict[str, str] | None = None) -> dict[str, str]:
    """Environment without any GGML_MOECACHE_* of the caller; `capacity` None leaves the plugin out altogether.

    The stand-in is allowed (it is used only where there is no GPU) and a fallback is an error.
    """
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("GGML_MOECACHE_", "MOECACHE_REQUIRE", "GGML_BACKEND_PATH", "LLAMA_ARG_"))
    }
    environment["LLAMA_CPP_LIB_PATH"] = str(build.llama_bin)
    # OpenMP threads spin at barriers for milliseconds: on a busy machine of few cores that makes a tiny model up to 50
    # times slower. 1000 turns are as fast as the default on an idle one.
    environment["GOMP_SPINCOUNT"] = "1000"
    if capacity is not None:
        environment["GGML_MOECACHE_STANDIN"] = "1"
        environment["GGML_MOECACHE_CAPACITY"] = capacity
        environment["MOECACHE_REQUIRE"] = "1"
    for key, value in (extra or {}).items():
        if value:
            environment[key] = value
        else:
            environment.pop(key, None)
    return environment


def reference_device() -> str | None:
    """Stock device to compare with: MOECACHE_REFERENCE_DEVICE (such as CUDA0), else None for the CPU.

    Needed where MoECache0 wraps a GPU: its kernels are then those of that GPU.
    """
    return os.environ.get("MOECACHE_REFERENCE_DEVICE") or None


def _resolve(variable: str, function: str, what: str) -> Path:
    named = os.environ.get(variable)
    if named:
        path = Path(named)
        source = f"{variable}={named}"
    else:
        try:
            import ggml_moecache

            found = getattr(ggml_moecache, function)()
        except Exception as error:
            raise MissingBuild(f"{what} is unknown ({error}): run scripts/setup, or set {variable}") from error
        if found is None:
            raise MissingBuild(f"ggml_moecache.{function}() finds nothing: run scripts/setup, or set {variable}")
        path = Path(found)
        source = f"ggml_moecache.{function}() = {path}"
    if not path.exists():
        raise MissingBuild(f"{what} does not exist ({source}): run scripts/setup, or set {variable}")
    return path.resolve()
