"""llama-perplexity on held-out text: the same four digits, chunk by chunk, and llama-bench runs on the device."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pyanalysis.traces import PHASES, read_trace
from tests.e2e.programs import SAME_KERNELS, Finished, run_moecache, run_stock
from tests.harness.environment import Build
from tests.models.tokenizer import embedded_model

HELDOUT = Path(__file__).parents[1] / "data" / "heldout.txt"
ARGUMENTS = ("-m", str(embedded_model()), "-f", str(HELDOUT), "-c", "512", *SAME_KERNELS)


def _chunk_values(finished: Finished) -> list[tuple[int, str]]:
    """Running perplexity after each chunk, in the program's own digits."""
    assert finished.returncode == 0, finished.stderr
    return [(int(chunk), value) for chunk, value in re.findall(r"\[(\d+)\](\d+\.\d{4})", finished.stdout)]


@pytest.fixture(scope="module")
def stock(build: Build) -> Finished:
    return run_stock(build, "llama-perplexity", *ARGUMENTS)


@pytest.mark.parametrize("capacity", ["0", "all"])
def test_perplexity_on_heldout_text(build: Build, stock: Finished, capacity: str) -> None:
    """42 chunks of 512 tokens, each figure as stock prints it."""
    ours = run_moecache(build, "llama-perplexity", *ARGUMENTS, capacity=capacity)
    expected = _chunk_values(stock)
    assert len(expected) == 42
    assert _chunk_values(ours) == expected
    assert 9.0 < float(expected[-1][1]) < 9.4
    assert ours.active_context()["n_resident"] == (1024 if capacity == "all" else 0)


def test_a_perplexity_run_is_logged_as_prefill(build: Build, tmp_path: Path) -> None:
    """Chunks of 512 tokens in ubatches of 128: the logits of the last two of a chunk are wanted, all of them."""
    log = tmp_path / "log"
    arguments = (*ARGUMENTS, "-b", "512", "-ub", "128", "--chunks", "2", "--no-warmup")
    finished = run_moecache(
        build, "llama-perplexity", *arguments, capacity="0", environment={"GGML_MOECACHE_LOG": str(log)}
    )
    assert finished.returncode == 0, finished.stderr
    trace = read_trace(log)
    given = trace.request >= trace.request.max() - 1  # behind llama.cpp's empty runs
    assert given.sum() == 2 * 512 * 8
    assert set(trace.phase[given]) == {PHASES.index("prefill")}


@pytest.mark.parametrize("capacity", ["0", "all"])
def test_bench_runs_on_the_device(build: Build, capacity: str) -> None:
    """Prompt and generation of llama-bench, which hides all logs: the status file says what ran where."""
    arguments = ("-m", str(embedded_model()), "-ngl", "99", "-t", "2", "-p", "40", "-n", "6", "-r", "2", "-o", "json")
    finished = run_moecache(build, "llama-bench", *arguments, capacity=capacity)
    assert finished.returncode == 0, finished.stderr
    tests = json.loads(finished.stdout)
    assert [(test["n_prompt"], test["n_gen"]) for test in tests] == [(40, 0), (0, 6)]
    for test in tests:
        assert test["devices"] == "MoECache0"
        assert "MoECache" in test["backends"]
        assert test["avg_ts"] > 0
    assert finished.status is not None
    active = [context for context in finished.status["contexts"] if context["state"] == "active"]
    assert len(active) == 2
    # llama-bench warms up with the whole prompt, or with one token, and then runs twice.
    assert [context["n_events"] for context in active] == [8 * 40 * 3, 8 * (1 + 6 * 2)]
