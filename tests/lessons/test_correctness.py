"""Lessons 1 to 9: faults of other expert caches that gave wrong results. `pytest -k lesson_07` runs one of them.

All on a cache with fewer slots than experts, where the stand-in's bits must be stock's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.harness.environment import Build, reference_device
from tests.harness.exact import assert_as_stock
from tests.harness.plan import ModelOptions, Plan, Scenario, Step, decode
from tests.harness.routing_log import run_logged
from tests.harness.runner import Result, run_moecache
from tests.harness.scenarios import STANDARD, prefill_and_decode, token_stream
from tests.models.families.table import FAMILIES
from tests.models.generate import model_path, planted_routing
from tests.models.lora import adapter_path
from tests.models.tokenizer import embedded_model

pytestmark = pytest.mark.skipif(reference_device() is not None, reason="bits of hits and misses are the stand-in's")

LRU = {"GGML_MOECACHE_POLICY": "lru"}


def one_by_one(path: Path, n_token: int, seed: int = 3) -> Plan:
    tokens = token_stream(n_token, seed=seed)
    steps = tuple(decode([token], start=position) for position, token in enumerate(tokens))
    return Plan(ModelOptions(str(path)), (Scenario("one-by-one", steps),))


def contexts_of(result: Result) -> list[dict[str, Any]]:
    assert result.status is not None
    return [context for context in result.status["contexts"] if context["state"] != "idle"]


def run(build: Build, plan: Plan, capacity: str, **environment: str) -> dict[str, Any]:
    """Run, compare with stock bit for bit, return the first context's figures."""
    result = run_moecache(build, plan, capacity=capacity, environment=environment)
    assert_as_stock(build, plan, result.logits(), capacity=capacity)
    return contexts_of(result)[0]


@pytest.mark.parametrize("sync", ["0", "1"])
def test_lesson_01_an_expert_in_use_is_evicted_by_its_own_step(build: Build, tmp_path: Path, sync: str) -> None:
    """Two slots in each layer for a top-4, and ubatches that use more experts than there are slots: LRU evicts what
    the very event hit."""
    path = model_path("qwen35moe", "Q4_0")
    tokens = token_stream(48, seed=9)
    single = tuple(decode([token], start=position) for position, token in enumerate(tokens[:16]))
    plan = Plan(ModelOptions(str(path)), (Scenario("mixed", (*single, decode(tokens[16:], start=16))),))
    settings = {**LRU, "GGML_MOECACHE_PER_LAYER": "1", "GGML_MOECACHE_SYNC": sync}
    result, log = run_logged(build, plan, tmp_path / "log", "2", **settings)
    assert_as_stock(build, plan, result.logits(), capacity="2")
    batch = [event for event in log.events if event["token_index"] >= 16 and event["layer_id"] == 0]
    assert len({expert for event in batch for expert in event["expert_ids"]}) > 2
    if sync == "1":
        own = [
            event
            for event in log.events
            if {(event["layer_id"], e) for e, hit in zip(event["expert_ids"], event["cache_hit"], strict=True) if hit}
            & {tuple(pair) for pair in event["evicted"]}
        ]
        assert own, "no event evicted an expert that it used: this run tests nothing"


def test_lesson_02_a_slot_is_overwritten_while_it_is_read(build: Build) -> None:
    """One slot in each layer and LRU: it is read by a token and given away by the same token, for 60 tokens. A copy
    that did not wait for the reader would replace weights in the middle of a product. The races themselves are looked
    for by tests/backend/sessions."""
    figures = run(build, one_by_one(embedded_model(), 60), "1", GGML_MOECACHE_PER_LAYER="1", **LRU)
    assert figures["n_evictions"] > 8 * 50


@pytest.mark.parametrize("type_name", ["Q4_K+Q6_K", "Q4_0"])
@pytest.mark.parametrize("family", ["qwen3moe", "grovemoe"])
@pytest.mark.parametrize("per_layer", ["0", "1"])
def test_lesson_03_experts_of_different_size_in_one_pool(
    build: Build, tmp_path: Path, family: str, type_name: str, per_layer: str
) -> None:
    """Mixed quantizations give experts of two sizes; they never share a pool, whose stride is that of the weights."""
    plan = Plan(ModelOptions(str(model_path(family, type_name, build.llama_bin))), STANDARD)
    settings = {**LRU, "GGML_MOECACHE_PER_LAYER": per_layer, "GGML_MOECACHE_SYNC": "1"}
    result, log = run_logged(build, plan, tmp_path / "log", "60%", **settings)
    assert_as_stock(build, plan, result.logits(), capacity="60%")
    sizes = {layout["bytes"] for layout in log.metadata["model"]["expert_bytes"]}
    assert len(sizes) == (2 if "+" in type_name else 1)
    assert contexts_of(result)[0]["n_hits"] > 0


@pytest.mark.parametrize("family", ["qwen35moe", "qwen3moe", "gpt-oss"])
def test_lesson_04_the_top_k_view_is_strided(build: Build, tmp_path: Path, family: str) -> None:
    """Ids of a batch are rows of a larger argsort: what the cache looked up is what was planted into the model."""
    tokens = token_stream(32, seed=4)
    plan = Plan(ModelOptions(str(model_path(family, "Q4_0"))), (Scenario("batch", (decode(tokens),)),))
    result, log = run_logged(build, plan, tmp_path / "log", "50%")
    assert_as_stock(build, plan, result.logits(), capacity="50%")
    geometry = FAMILIES[family].geometry
    routing = planted_routing(family)
    for layer in (layer for layer in geometry.moe_layers if layer < geometry.n_layer):
        found = [event["expert_ids"] for event in log.events if event["layer_id"] == layer]
        np.testing.assert_array_equal(found, routing.expert_ids(layer, tokens))


@pytest.mark.parametrize("family", [
    "qwen3moe-scaled", "gpt-oss", "qwen35moe-fused", "llama4", "mixtral-ungated-top1", "smallthinker", "grovemoe",
])  # fmt: skip
def test_lesson_05_scales_biases_activations_and_fused_tensors(build: Build, family: str) -> None:
    """Rows of one block on both sides, in every form: per-expert scales and biases, clamped SwiGLU, gate_up in one,
    weights before the experts, no gate."""
    figures = run(build, one_by_one(model_path(family, "Q4_0"), 30), "60%", GGML_MOECACHE_SYNC="1", **LRU)
    assert figures["n_hits"] > 0
    assert figures["n_misses"] > 0
    assert figures["fallbacks"] == []


@pytest.mark.parametrize("family", ["qwen3moe", "gpt-oss"])
def test_lesson_05_adapters(build: Build, family: str) -> None:
    """A LoRA adapter comes and goes between tokens: its blocks are the CPU's as a whole, and the status says so."""
    tokens = token_stream(30, seed=6)
    singles = [decode([token], start=position) for position, token in enumerate(tokens)]
    adapter = str(adapter_path(family))
    on, off = Step("lora", path=adapter, scale=1.0), Step("lora", path=adapter, scale=0.0)
    steps = (*singles[:10], on, *singles[10:20], off, *singles[20:])
    plan = Plan(ModelOptions(str(model_path(family, "Q4_0"))), (Scenario("adapter", steps),))
    figures = run(build, plan, "50%", MOECACHE_REQUIRE="", GGML_MOECACHE_SYNC="1", **LRU)
    assert figures["fallbacks"] == ["whole_block"]
    assert figures["n_whole_blocks"] == 10 * FAMILIES[family].geometry.n_layer
    assert figures["n_hits"] > 0


def test_lesson_06_runs_that_shall_be_alike_are(build: Build, tmp_path: Path) -> None:
    """A number of experts, synchronous copies, one seed: logits, log (but for times) and figures are the same bytes.
    `auto` depends on free memory, and with it the content of the cache, never the logits on the stand-in."""
    plan = one_by_one(embedded_model(), 30)
    settings = {"GGML_MOECACHE_SYNC": "1", "GGML_MOECACHE_POLICY": "random:seed=4"}
    runs = [run_logged(build, plan, tmp_path / name, "100", **settings) for name in ("first", "second")]
    logs = []
    for result, log in runs:
        assert_as_stock(build, plan, result.logits(), capacity="100")
        kept = [{k: v for k, v in event.items() if k != "run_id" and not k.endswith("_ns")} for event in log.events]
        logs.append(json.dumps(kept))
    assert logs[0] == logs[1]
    figures = [{k: v for k, v in contexts_of(result)[0].items() if not k.endswith("_ns")} for result, _ in runs]
    assert figures[0] == figures[1]
    sizes = []
    for mib in ("16", "20"):
        auto = {"GGML_MOECACHE_RESERVE_MIB": "0", "GGML_MOECACHE_DEVICE_MIB": mib}
        sizes.append(run(build, plan, "auto", **auto, **LRU)["n_resident"])
    assert 0 < sizes[0] < sizes[1]


def test_lesson_07_an_mtp_layer_has_a_cache_of_its_own(build: Build) -> None:
    """The trunk's decisions are those of a run without an MTP context; each context has slots for its layers only."""
    path = model_path("qwen35moe-mtp", "Q4_0")
    tokens = token_stream(24, seed=8)
    trunk = Scenario("trunk", tuple(decode([token], start=i) for i, token in enumerate(tokens)))
    hidden = tuple(Step(**{**vars(decode([token], start=i)), "hidden_seed": i + 1}) for i, token in enumerate(tokens))
    mtp = Scenario("mtp", hidden, is_mtp=True)
    settings = {**LRU, "GGML_MOECACHE_SYNC": "1"}
    counters = ("n_hits", "n_misses", "n_copies", "n_evictions", "n_resident", "n_experts")
    results = []
    for scenarios in ((trunk,), (trunk, mtp)):
        plan = Plan(ModelOptions(str(path)), scenarios)
        result = run_moecache(build, plan, capacity="40%", environment=settings)
        assert_as_stock(build, plan, result.logits(), capacity="40%")
        results.append(contexts_of(result))
    alone, (beside, of_mtp) = results[0][0], results[1]
    assert [alone[name] for name in counters] == [beside[name] for name in counters]
    assert (beside["n_experts"], beside["n_resident"]) == (32, 13)
    assert (of_mtp["n_experts"], of_mtp["n_resident"]) == (16, 6)
    assert of_mtp["n_hits"] > 0


def test_lesson_08_a_context_that_ends_takes_no_other_s_cache(build: Build) -> None:
    """Contexts on one model, in turns and one after the other: each is cold at first and has its own figures."""
    tokens = token_stream(16, seed=2)
    turns = tuple(decode([token], start=i, context=context) for i, token in enumerate(tokens) for context in range(2))
    plan = Plan(
        ModelOptions(str(embedded_model())),
        (Scenario("turns", turns), Scenario("after", tuple(decode([t], start=i) for i, t in enumerate(tokens)))),
    )
    result = run_moecache(build, plan, capacity="30%", environment={**LRU, "GGML_MOECACHE_SYNC": "1"})
    assert_as_stock(build, plan, result.logits(), capacity="30%")
    figures = [(c["n_hits"], c["n_misses"], c["n_copies"], c["n_evictions"]) for c in contexts_of(result)]
    assert len(figures) == 3
    assert figures[0] == figures[1] == figures[2]
    assert figures[0][0] > 0


@pytest.mark.parametrize("flash_attn", [0, 1])
def test_lesson_09_graphs_change_with_the_length_of_the_context(build: Build, flash_attn: int) -> None:
    """Decoding across the borders where llama.cpp makes a new graph (256 cells of KV cache), between larger batches."""
    long = prefill_and_decode(250, 14)
    tokens = token_stream(300, seed=12)
    mixed = Scenario(
        "mixed",
        (
            decode(tokens[:200]),
            *(decode([tokens[i]], start=i) for i in range(200, 210)),
            decode(tokens[210:250], start=210),
            *(decode([tokens[i]], start=i) for i in range(250, 262)),
            decode(tokens[262:270], start=262),
            *(decode([tokens[i]], start=i) for i in range(270, 280)),
        ),
        flash_attn=flash_attn,
    )
    plan = Plan(ModelOptions(str(embedded_model())), (long, mixed))
    assert run(build, plan, "40%", **LRU)["n_hits"] > 0
