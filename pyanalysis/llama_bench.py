"""Run stock llama-bench and read its speeds.

Needs nothing but the standard library, so that it also runs on a machine where only the plugin was copied to.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class BenchError(RuntimeError):
    """llama-bench ended with an error; the message holds the command and its last lines."""


def run_llama_bench(llama_bin: Path, options: Sequence[str], variables: Mapping[str, str]) -> dict[str, float]:
    """Tokens per second by test ("pp512", "tg128") of one run, the mean of its repetitions. Raises BenchError."""
    return {_test(row): float(row["avg_ts"]) for row in _rows(llama_bin, options, variables)}


def repetitions_of_llama_bench(
    llama_bin: Path, options: Sequence[str], variables: Mapping[str, str]
) -> dict[str, list[float]]:
    """Tokens per second of every repetition by test of one run. Raises BenchError."""
    return {_test(row): [float(value) for value in row["samples_ts"]] for row in _rows(llama_bin, options, variables)}


def _test(row: Mapping[str, Any]) -> str:
    return f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}"


def _rows(llama_bin: Path, options: Sequence[str], variables: Mapping[str, str]) -> list[dict[str, Any]]:
    """What one run prints. Raises BenchError.

    Of the plugin's variables the run sees those in `variables` alone: what the caller's shell has set would make arms
    that are compared differ from what they are called.
    """
    command = [str(llama_bin / "llama-bench"), "-o", "jsonl", *options]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GGML_MOECACHE_", "GGML_BACKEND_PATH"))}
    result = subprocess.run(command, env={**kept, **variables}, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise BenchError(f"{' '.join(command)} ended with status {result.returncode}:\n{result.stderr[-2000:]}")
    return [json.loads(line) for line in result.stdout.splitlines()]
