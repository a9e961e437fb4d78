#!/usr/bin/env python3
"""The steps of scripts/setup, run by .venv's own interpreter: tools, llama.cpp, llama-cpp-python, this package.

Each pip step leaves a stamp in .venv with a hash of what it depends on, so a step runs again exactly when that has
changed.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import build_llama_cpp
import fetch_llama_cpp

ROOT = Path(__file__).resolve().parent.parent
# What is compiled or copied into the installed package.
PACKAGE_INPUTS = ("CMakeLists.txt", "pyproject.toml", "README.md", "ggml_moecache", "bindings", "pyanalysis")
BUILD_TOOLS = ("scikit-build-core>=0.10", "nanobind>=2.4")


def say(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr, flush=True)


def digest(*parts: str, files: tuple[str, ...] = ()) -> str:
    """Hash of the strings and of every file below the named paths of the checkout."""
    value = hashlib.sha256("\0".join((sys.version, *parts)).encode())
    for name in files:
        path = ROOT / name
        for file in sorted(p for p in ([path] if path.is_file() else path.rglob("*")) if p.is_file()):
            if "__pycache__" not in file.parts:
                value.update(f"\0{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return value.hexdigest()


def pip(*arguments: str, environment: dict[str, str] | None = None) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    if subprocess.run(command, env={**os.environ, **(environment or {})}, check=False).returncode != 0:
        raise SystemExit(f"error: {shlex.join(command[2:])} failed; pip's output is above")


def step(name: str, key: str, *arguments: str, environment: dict[str, str] | None = None) -> None:
    """Install `arguments` with pip unless the stamp `name` says that `key` is installed already."""
    stamp = Path(sys.prefix) / f".{name}.stamp"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == key:
        return
    started = time.monotonic()
    say(f"installing {name}")
    stamp.unlink(missing_ok=True)
    pip(*arguments, environment=environment)
    stamp.write_text(key, encoding="utf-8")
    say(f"installed {name} in {time.monotonic() - started:.0f} s")


def build_tools() -> list[str]:
    """scikit-build-core and nanobind, and cmake or ninja from PyPI where the system has none."""
    system_path = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if Path(p) != Path(sys.prefix, "bin"))
    missing = [tool for tool in ("cmake", "ninja") if shutil.which(tool, path=system_path) is None]
    return [*BUILD_TOOLS, *missing]


def require_compiler() -> None:
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        raise SystemExit("error: no C++ compiler found; on Debian: apt install g++ (or set CXX)")


def llama_build(source: Path) -> Path:
    """The llama.cpp build to use: the user's own, or the cached one, made if need be."""
    if own := os.environ.get("MOECACHE_LLAMA_DIR"):
        folder = Path(own).expanduser().resolve()
        places = (folder, folder / "bin", folder / "lib", folder / "build" / "bin")
        found = [place for place in places if (place / "libllama.so").is_file()]
        if not found:
            raise SystemExit(f"error: MOECACHE_LLAMA_DIR={own} holds no libllama.so, nor do its bin, lib and build/bin")
        return found[0]
    extra = shlex.split(os.environ.get("MOECACHE_LLAMA_CMAKE_ARGS", ""))
    return build_llama_cpp.build_llama_cpp(source, extra) / "bin"


def main() -> None:
    os.environ["PATH"] = f"{Path(sys.prefix, 'bin')}{os.pathsep}{os.environ['PATH']}"
    require_compiler()
    tools = build_tools()
    step("build-tools", digest(*tools), *tools)
    sdist = fetch_llama_cpp.fetch(fetch_llama_cpp.cache_home())
    source = Path(os.environ.get("LLAMA_CPP_DIR") or sdist).expanduser().resolve()
    llama_bin = llama_build(source)
    # The libraries are ours, so this is Python code only. No pip cache: pip would give this wheel, which holds no
    # library, to the user's other projects.
    step(
        "llama-cpp-python",
        digest(str(sdist)),
        "--no-cache-dir",
        "--no-build-isolation",
        str(sdist),
        environment={"CMAKE_ARGS": "-DLLAMA_BUILD=OFF"},
    )
    record = Path(sys.prefix, "share", "ggml-moecache", "llama-dir")
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(f"{llama_bin}\n", encoding="utf-8")
    step(
        "ggml-moecache",
        digest(str(source), os.environ.get("CMAKE_ARGS", ""), files=PACKAGE_INPUTS),
        "--no-build-isolation",
        f"--config-settings=cmake.define.LLAMA_CPP_DIR={source}",
        f"--config-settings=build-dir={ROOT / 'build' / 'python'}",
        f"{ROOT}[dev]",
    )
    say(f"ready: llama.cpp in {llama_bin}")


if __name__ == "__main__":
    main()
