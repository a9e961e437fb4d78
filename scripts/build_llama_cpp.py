#!/usr/bin/env python3
"""Build llama.cpp's libraries and stock programs once, in the cache. Prints the build folder; progress is on stderr.

    python scripts/build_llama_cpp.py SOURCE      # SOURCE: a llama.cpp checkout or the unpacked llama-cpp-python sdist

One folder per set of flags. The default is portable code (x86-64 with AVX2): the same machine code, so the same bits,
on every machine. An interrupted build goes on where it stopped; two builds of one folder wait for each other.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import fetch_llama_cpp

PROGRAMS = ("llama-completion", "llama-cli", "llama-server", "llama-bench", "llama-perplexity", "llama-quantize")
TARGETS = ("llama", "ggml", *PROGRAMS)
FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DGGML_BACKEND_DL=ON",
    "-DGGML_NATIVE=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
)
COMPLETE = ".moecache-complete"
PROGRESS_EVERY_S = 10.0


def build_name(source: Path, extra: list[str]) -> str:
    """Name of the build folder: readable for the pinned sources and default flags, a hash of what differs otherwise."""
    pinned = (
        source == fetch_llama_cpp.cache_home() / f"llama_cpp_python-{fetch_llama_cpp.VERSION}" / "vendor" / "llama.cpp"
    )
    if pinned and not extra:
        return f"llama-{fetch_llama_cpp.VERSION}-portable"
    digest = hashlib.sha256("\0".join([str(source), *extra]).encode()).hexdigest()[:12]
    return f"llama-{fetch_llama_cpp.VERSION if pinned else 'own'}-{digest}"


def run_with_progress(command: list[str], log_path: Path) -> None:
    """Run `command`, keep its output in `log_path`, show a line of it every 10 s. Raises SystemExit when it fails."""
    shown = 0.0
    with (
        log_path.open("w", encoding="utf-8") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process,
    ):
        for line in process.stdout or ():
            log.write(line)
            if line.startswith("[") and time.monotonic() - shown >= PROGRESS_EVERY_S:
                print(f"  {line.rstrip()[:110]}", file=sys.stderr, flush=True)
                shown = time.monotonic()
    if process.returncode != 0:
        tail = log_path.read_text(encoding="utf-8").splitlines()[-40:]
        raise SystemExit(
            "\n".join(tail) + f"\nerror: {shlex.join(command[:4])} ... failed; the whole log is {log_path}"
        )


def configure(source: Path, build: Path, extra: list[str]) -> None:
    flags = [*FLAGS, f"-DGGML_BACKEND_DIR={build / 'bin'}"]
    if shutil.which("ccache"):
        flags += ["-DCMAKE_C_COMPILER_LAUNCHER=ccache", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"]
    run_with_progress(
        ["cmake", "-G", "Ninja", "-S", str(source), "-B", str(build), *flags, *extra], build / "configure.log"
    )


def build_llama_cpp(source: Path, extra: list[str]) -> Path:
    """Build `source` with `extra` CMake flags and return the build folder, whose bin/ holds libraries and programs."""
    if (source / "vendor" / "llama.cpp").is_dir():
        source = source / "vendor" / "llama.cpp"
    if not (source / "ggml" / "CMakeLists.txt").is_file():
        raise SystemExit(f"error: {source} is not a llama.cpp source checkout; set LLAMA_CPP_DIR to one or unset it")
    build = fetch_llama_cpp.cache_home() / build_name(source, extra)
    if (build / COMPLETE).is_file():
        return build
    build.mkdir(parents=True, exist_ok=True)
    with (build.parent / f".{build.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another build of {build}", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        if (build / COMPLETE).is_file():
            return build
        print(f"building llama.cpp into {build} (about 8 minutes on 2 cores, once)", file=sys.stderr, flush=True)
        if not (build / "build.ninja").is_file():
            configure(source, build, extra)
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
        run_with_progress(["cmake", "--build", str(build), "-j", jobs, "--target", *TARGETS], build / "build.log")
        (build / COMPLETE).write_text(shlex.join([*FLAGS, *extra]) + "\n", encoding="utf-8")
    return build


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="SOURCE")
    source = parser.parse_args().source.resolve()
    print(build_llama_cpp(source, shlex.split(os.environ.get("MOECACHE_LLAMA_CMAKE_ARGS", ""))))


if __name__ == "__main__":
    main()
