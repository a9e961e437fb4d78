"""llama-server on the device: parallel requests, a draft model and the model's own MTP layer answer as stock does.

Greedy text is compared, so the two likeliest tokens must lie further apart than rounding: requests that run together
share batches in an order that timing decides, and the CPU's matrix kernels round differently for other batch sizes.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tests.e2e.server import running_server
from tests.harness.environment import Build
from tests.models.generate import model_path
from tests.models.tokenizer import embedded_model

PROMPTS = [
    "SQLite is a library that",
    "def quicksort(items):\n",
    "The integral of a function is",
    "Apache HTTP server modules",
]
N_PREDICT = 24
# Smallest distance of the best two log-probabilities in stock's answers to PROMPTS is 0.016, rounding makes 1e-5.
CLEAR_MARGIN = 1e-3
MODEL = ("-m", str(embedded_model()))
SEQUENTIAL = ("-np", "1", "-c", "1024")


def _margins(answer: dict[str, Any]) -> list[float]:
    """Distance of the best two log-probabilities per token."""
    best = [step["top_logprobs"] for step in answer["completion_probabilities"]]
    return [first["logprob"] - second["logprob"] for first, second in best]


def _answers(build: Build, capacity: str | None, *arguments: str) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Answers to PROMPTS, one after the other, and the status file."""
    with running_server(build, *arguments, capacity=capacity) as server:
        answers = [server.complete(prompt, N_PREDICT) for prompt in PROMPTS]
    return answers, server.status


@functools.cache
def _stock_answers(build: Build, *arguments: str) -> list[dict[str, Any]]:
    """Stock's answers, which the tests of both capacities compare with."""
    return _answers(build, None, *arguments)[0]


@pytest.fixture(scope="module")
def stock_texts(build: Build) -> list[str]:
    """Stock's answers, requested one by one; none of them rests on a near tie."""
    answers = _stock_answers(build, *MODEL, *SEQUENTIAL)
    assert min(min(_margins(answer)) for answer in answers) > CLEAR_MARGIN
    return [answer["content"] for answer in answers]


@pytest.mark.parametrize("capacity", ["0", "25%", "all"])
def test_four_parallel_requests(build: Build, stock_texts: list[str], capacity: str) -> None:
    with running_server(build, *MODEL, "-np", "4", "-c", "4096", capacity=capacity) as server:
        together = server.complete_together(PROMPTS, N_PREDICT)
        again = server.complete_together(PROMPTS, N_PREDICT)
    assert [answer["content"] for answer in together] == stock_texts
    assert [answer["content"] for answer in again] == stock_texts
    assert server.status is not None
    (context,) = (context for context in server.status["contexts"] if context["state"] == "active")
    assert context["n_resident"] == {"0": 0, "25%": 256, "all": 1024}[capacity]
    assert context["closed"] is True
    n_row = context["n_hits"] + context["n_misses"]
    assert n_row == 8 * context["n_events"]
    assert (context["n_misses"] > 0, context["n_hits"] > 0) == (capacity != "all", capacity != "0")


@pytest.mark.parametrize("capacity", ["0", "25%", "all"])
@pytest.mark.parametrize(("draft", "n_draft_expert"), [("embedded", 1024), ("qwen3moe", 18), ("dense", 0)])
def test_draft_model(build: Build, stock_texts: list[str], capacity: str, draft: str, n_draft_expert: int) -> None:
    """A second model on the same device: the target itself (every draft accepted), a random MoE model, a dense one."""
    path = embedded_model() if draft == "embedded" else model_path(draft, "Q4_0")
    options = (*MODEL, *SEQUENTIAL, "--spec-type", "draft-simple", "-md", str(path))
    stock = _stock_answers(build, *options)
    ours, status = _answers(build, capacity, *options, "-devd", "MoECache0", "-ngld", "99")
    assert [answer["content"] for answer in ours] == stock_texts
    for expected, actual in zip(stock, ours, strict=True):
        assert actual["content"] == expected["content"]
        for count in ("draft_n", "draft_n_accepted"):
            assert actual["timings"][count] == expected["timings"][count]
    assert status is not None
    contexts = [context for context in status["contexts"] if context["state"] != "idle"]
    assert sorted(context["n_experts"] for context in contexts) == sorted([1024, n_draft_expert])


@pytest.mark.parametrize("capacity", ["0", "25%", "all"])
def test_mtp_layer_drafts(build: Build, capacity: str) -> None:
    """--spec-type draft-mtp: target and MTP context are two contexts on one model, with their own layers."""
    options = ("-m", str(model_path("qwen35moe-mtp", "Q4_0")), *SEQUENTIAL, "--spec-type", "draft-mtp")
    stock = _stock_answers(build, *options)
    ours, status = _answers(build, capacity, *options)
    for expected, actual in zip(stock, ours, strict=True):
        assert actual["content"] == expected["content"]
        assert actual["timings"]["draft_n"] == expected["timings"]["draft_n"] > 0
    assert status is not None
    active = [context for context in status["contexts"] if context["state"] == "active"]
    assert [(context["n_layers"], context["n_experts"]) for context in active] == [(2, 32), (1, 16)]
