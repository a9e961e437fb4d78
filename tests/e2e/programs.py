"""Starts stock llama.cpp programs, without the plugin or with it on MoECache0."""

from __future__ import annotations

import functools
import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.environment import Build, process_environment, reference_device

TIMEOUT_S = 300
# What these programs log after their last output. Output and log go through one queue and one thread that llama.cpp
# does not wait for at exit: without this text the end of the output may be missing too.
LAST_LOG_TEXT = {"llama-completion": "graphs reused =", "llama-perplexity": "Final estimate: PPL ="}
MAX_ATTEMPTS = 30
# The CPU's own kernels on the weights as they are in the file, and as many threads on both sides.
SAME_KERNELS = ("--no-repack", "-t", "2")


@dataclass(frozen=True)
class Finished:
    """What a program left behind."""

    returncode: int
    stdout: str
    stderr: str
    status: dict[str, Any] | None

    def active_context(self) -> dict[str, Any]:
        """The first context of the status file that computed an MoE block or says why not."""
        assert self.status is not None, self.stderr
        return next(context for context in self.status["contexts"] if context["state"] != "idle")


@functools.lru_cache(maxsize=64)
def run_stock(build: Build, program: str, *arguments: str) -> Finished:
    """Run a program without the plugin, on the reference device or on the CPU alone; once per set of arguments."""
    return _run(build, program, [*arguments, "-dev", reference_device() or "none"], None, {})


def run_moecache(
    build: Build,
    program: str,
    *arguments: str,
    capacity: str = "0",
    device: str = "MoECache0",
    environment: dict[str, str] | None = None,
) -> Finished:
    """Run a program with the plugin and all layers on the device unless the arguments say otherwise.

    `environment` adds variables, an empty value removes one.
    """
    return _run(build, program, [*arguments, "-dev", device], capacity, environment or {})


def start_environment(build: Build, capacity: str | None, extra: dict[str, str]) -> dict[str, str]:
    """Environment of a program; with a capacity it loads the plugin."""
    variables = process_environment(build, capacity=capacity)
    if capacity is not None:
        variables["GGML_BACKEND_PATH"] = str(build.plugin)
    for key, value in extra.items():
        if value:
            variables[key] = value
        else:
            variables.pop(key, None)
    return variables


def _run(
    build: Build, program: str, arguments: list[str], capacity: str | None, environment: dict[str, str]
) -> Finished:
    """Run until the output is complete: a run that stock cut short tells nothing and is repeated."""
    for _ in range(MAX_ATTEMPTS):
        finished = _run_once(build, program, arguments, capacity, environment)
        complete = LAST_LOG_TEXT.get(program, "") in finished.stderr
        if complete or finished.returncode != 0 or "--list-devices" in arguments:
            return finished
    raise RuntimeError(f"{program} left its output unfinished {MAX_ATTEMPTS} times:\n{finished.stderr[-2000:]}")


def _run_once(
    build: Build, program: str, arguments: list[str], capacity: str | None, environment: dict[str, str]
) -> Finished:
    with tempfile.TemporaryDirectory(prefix="moecache-e2e-") as scratch:
        status_file = Path(scratch) / "status.json"
        extra = environment if capacity is None else {"GGML_MOECACHE_STATUS": str(status_file), **environment}
        done = subprocess.run(
            [str(build.llama_bin / program), *arguments],
            env=start_environment(build, capacity, extra),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        status = json.loads(status_file.read_text()) if status_file.is_file() else None
    return Finished(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"), status)
