"""Which devices a llama.cpp build sees, as JSON on stdout: python -m ggml_moecache._probe LIBRARY_DIR.

A process of its own, because ggml can neither unload its backends nor forget a registry, and because a broken build
must not take the caller down.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ggml_moecache._plugin import Registry
from ggml_moecache.errors import BackendError


def devices_of(library_dir: Path, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """Devices, with memory in MiB, of the build in `library_dir` with the plugin loaded under `environment`.

    Keys: "ggml_version", "devices" (a list), "has_gpu", "refusal" (None, or why the plugin was not loaded), "reason"
    (the code of that in the plugin's table).
    Raises BackendError if the build itself cannot be loaded.
    """
    command = [sys.executable, "-m", "ggml_moecache._probe", str(library_dir)]
    variables = {**(os.environ if environment is None else environment)}
    if variables.get("MOECACHE_REQUIRE") == "1":
        variables["MOECACHE_REQUIRE"] = "0"  # the answer is a refusal, not the end of the process
    variables.pop("GGML_MOECACHE_STATUS", None)  # a probe has no status, and may run beside a program that has
    result = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        last = (result.stderr.strip().splitlines() or ["no output"])[-1]
        raise BackendError(f"the llama.cpp build in {library_dir} cannot be used: {last}")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def _probe(library_dir: Path) -> dict[str, Any]:
    ctypes.CDLL(str(library_dir / "libllama.so"))
    registry = Registry()
    registry.load_stock_backends(library_dir)
    has_gpu = any(device["is_gpu"] for device in registry.devices())
    refusal, reason = None, "none"
    try:
        registry.load_plugin()
    except BackendError as error:
        refusal, reason = str(error), error.reason
    devices = list(registry.devices())
    return {
        "ggml_version": registry.version,
        "devices": devices,
        "has_gpu": has_gpu,
        "refusal": refusal,
        "reason": reason,
    }


def main() -> None:
    stdout = os.dup(1)
    os.dup2(2, 1)  # whatever the libraries print is no part of the JSON
    try:
        found = _probe(Path(sys.argv[1]))
    except (OSError, BackendError) as error:
        raise SystemExit(str(error)) from error
    os.write(stdout, json.dumps(found).encode())


if __name__ == "__main__":
    main()
