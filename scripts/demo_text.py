#!/usr/bin/env python3
"""The text part of scripts/demo: the embedded model through llama-completion and through Python, and what ran where."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import ggml_moecache
from pyanalysis import run

PROMPT = "SQLite is a library that"
N_TOKENS = 48
SEED = 1


def describe(status: dict[str, Any]) -> list[str]:
    """One line per llama context that computed something on a MoECache device."""
    lines = []
    for context in status["contexts"]:
        if context["state"] == "idle":
            continue
        place = f"{context['device']} over {context['inner']}"
        resident = f"{context['n_resident']} of {context['n_experts']} experts on the device"
        rows = f"{context['n_hits']} expert rows computed there, {context['n_misses']} on the CPU"
        why = "" if context["reason"] == "none" else f" ({context['reason']})"
        lines.append(f"{context['state']}{why}: {place}; {resident}; {rows}")
    return lines or ["no context computed anything on a MoECache device"]


def report(status: dict[str, Any]) -> None:
    for line in describe(status):
        print(f"   what ran where: {line}", flush=True)


def through_llama_completion(capacity: str, log: Path) -> int:
    """Run stock llama-completion, print its command first, and return its exit status."""
    # flash attention as in llama-cpp-python's defaults, so that both give the same text
    options = ["-p", PROMPT, "-n", str(N_TOKENS), "--temp", "0", "--seed", str(SEED), "-fa", "off"]
    command, environment = run.prepare(run.parse(["--capacity", capacity, "--log", str(log), *options]))
    with tempfile.TemporaryDirectory() as folder:
        status_file = Path(folder, "status.json")
        environment["GGML_MOECACHE_STATUS"] = str(status_file)
        changed = {k: v for k, v in environment.items() if os.environ.get(k) != v and v != str(status_file)}
        print("\n1. stock llama-completion\n   $", *(f"{k}={v}" for k, v in changed.items()), shlex.join(command))
        print("   ---", flush=True)
        result = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=False)
        print("\n   ---", flush=True)
        if result.returncode != 0:
            sys.stderr.write(result.stderr)
            print(f"error: llama-completion ended with status {result.returncode}", file=sys.stderr)
            return result.returncode
        if not status_file.is_file():
            sys.stderr.write(result.stderr)
            print("error: the plugin wrote no status, so it was not used; the log is above", file=sys.stderr)
            return 1
        report(json.loads(status_file.read_text(encoding="utf-8")))
    run.describe_log(log, ggml_moecache.embedded_model(), SEED)
    return 0


def show_log(log: Path) -> int:
    """The summary of the routing log, and its Parquet form beside it."""
    moecache = Path(sys.executable).with_name("moecache")
    parquet = log / "routing.parquet"
    subprocess.run(
        [moecache, "trace", "convert", log / "routing.jsonl", parquet], check=True, stdout=subprocess.DEVNULL
    )
    print(f"\n3. What the router chose in 1 (moecache trace show {log.name})\n", flush=True)
    return subprocess.run([moecache, "trace", "show", log / "routing.jsonl"], check=False).returncode


def through_python(capacity: str) -> None:
    print(f"\n2. Python\n   >>> llm = ggml_moecache.load_model(capacity={capacity!r}, verbose=False)")
    print(f"   >>> llm.create_completion({PROMPT!r}, max_tokens={N_TOKENS}, temperature=0)\n   ---", flush=True)
    llm = ggml_moecache.load_model(capacity=capacity, verbose=False, seed=SEED)
    answer: Any = llm.create_completion(PROMPT, max_tokens=N_TOKENS, temperature=0)
    print(PROMPT + answer["choices"][0]["text"], "\n   ---", flush=True)
    report(ggml_moecache.status())
    llm.close()


def main() -> int:
    try:
        log = Path("demo-out")
        shutil.rmtree(log, ignore_errors=True)
        status = through_llama_completion(sys.argv[1], log)
        if status == 0:
            through_python(sys.argv[1])
            status = show_log(log)
    except ggml_moecache.MoeCacheError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return status


if __name__ == "__main__":
    sys.exit(main())
