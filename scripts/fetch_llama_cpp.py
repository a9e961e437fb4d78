#!/usr/bin/env python3
"""Fetch the pinned llama-cpp-python sdist, which holds llama.cpp's sources, into the cache. Prints its folder.

    python scripts/fetch_llama_cpp.py            # 77 MB the first time, nothing after that

The cache is $GGML_MOECACHE_HOME, else $XDG_CACHE_HOME/ggml-moecache, else ~/.cache/ggml-moecache. pip checks the
archive against the SHA-256 below, and its index settings (PIP_INDEX_URL, pip.conf, proxies) apply. Standard library
only: CMake runs this in build environments where nothing else is installed.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
# What tells a complete sdist from anything else that may lie at its place.
MARKER = Path("vendor", "llama.cpp", "ggml", "src", "ggml-backend-impl.h")


def cache_home() -> Path:
    """Folder of everything this project keeps outside its checkout."""
    if home := os.environ.get("GGML_MOECACHE_HOME"):
        return Path(home).expanduser().resolve()
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache").resolve() / "ggml-moecache"


def download(folder: Path) -> Path:
    """Download the sdist into `folder` with pip and return its path. Raises SystemExit with one message on failure."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"llama-cpp-python=={VERSION} --hash=sha256:{SHA256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--require-hashes"]
    command += [
        "--no-deps",
        "--no-binary",
        "llama-cpp-python",
        "--dest",
        str(folder),
        "--requirement",
        str(requirements),
    ]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    archives = sorted(folder.glob("*.tar.gz"))
    if result.returncode != 0 or not archives:
        sys.stderr.write(result.stdout)
        raise SystemExit(
            f"error: pip could not download llama-cpp-python {VERSION} (its output is above). Check the network and "
            "pip's index, or set LLAMA_CPP_DIR to a llama.cpp checkout of the same ggml version."
        )
    return archives[0]


def fetch(home: Path) -> Path:
    """Return the folder of the unpacked sdist below `home`, fetching it if it is not there."""
    target = home / f"llama_cpp_python-{VERSION}"
    if (target / MARKER).is_file():
        return target
    home.mkdir(parents=True, exist_ok=True)
    with (home / ".fetch.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second fetch waits here and then finds the folder
        if (target / MARKER).is_file():
            return target
        if target.exists():
            raise SystemExit(f"error: {target} exists but is not the unpacked sdist; remove it and run this again")
        print(f"fetching llama-cpp-python {VERSION} (77 MB) into {target}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(dir=home, prefix=".fetch-") as temporary:
            archive = download(Path(temporary))
            with tarfile.open(archive) as tar:
                # Without the "data" filter, which Python before 3.10.12 lacks: the archive's hash is pinned above.
                tar.extractall(temporary)  # noqa: S202
            unpacked = Path(temporary) / f"llama_cpp_python-{VERSION}"
            if not (unpacked / MARKER).is_file():
                raise SystemExit(f"error: {archive.name} holds no {MARKER}")
            unpacked.rename(target)  # atomic: an interrupted fetch leaves no half-unpacked folder
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    print(fetch(cache_home()))


if __name__ == "__main__":
    main()
