#!/usr/bin/env python3
"""The three runs of scripts/bench: stock, capacity 0, capacity all; same model, same options, one after the other."""

from __future__ import annotations

import subprocess
import sys

import ggml_moecache
from pyanalysis import run


def main() -> int:
    options = sys.argv[1:]
    if not {"-m", "--model"} & set(options):
        options = ["-m", str(ggml_moecache.embedded_model()), *options]
    try:
        folder = run.program_dir()
        _, with_plugin = run.prepare(run.parse([]))
    except ggml_moecache.MoeCacheError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    stock = {k: v for k, v in with_plugin.items() if k != "GGML_BACKEND_PATH" and not k.startswith("GGML_MOECACHE_")}
    arms: list[tuple[str, dict[str, str], list[str]]] = [("stock", stock, [])]
    for capacity in ("0", "all"):
        environment = {**with_plugin, "GGML_MOECACHE_CAPACITY": capacity}
        arms.append((f"MoECache0, capacity {capacity}", environment, ["-dev", "MoECache0"]))
    for title, environment, device in arms:
        print(f"\n## {title}\n", flush=True)
        result = subprocess.run([folder / "llama-bench", *options, *device], env=environment, check=False)
        if result.returncode != 0:
            print(f"error: llama-bench ended with status {result.returncode}", file=sys.stderr)
            return result.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
