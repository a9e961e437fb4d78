"""The routing log holds, for every token and layer, what stock llama.cpp's eval callback shows (another path)."""

from __future__ import annotations

import dataclasses
import resource
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.harness.environment import Build, process_environment, reference_device
from tests.harness.plan import ModelOptions, Plan, Scenario, Step, decode
from tests.harness.routing_log import Log, observed, read_log, run_logged, stock_rows
from tests.harness.runner import Result, run_moecache, run_reference
from tests.harness.scenarios import last_output_only, prefill_and_decode, token_stream, two_sequences
from tests.models.families.table import FAMILIES, MOE_FAMILIES
from tests.models.generate import model_path
from tests.models.tokenizer import embedded_model

CAPACITIES = ("0", "40%", "all")


def by_expert(ids: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The experts of each row in rising order, with their weights."""
    order = np.argsort(ids, axis=1)
    return np.take_along_axis(ids, order, axis=1), np.take_along_axis(weights, order, axis=1)


Decisions = tuple[np.ndarray, np.ndarray]  # ids and weights, both (n_token, top_k)


def stock_layer(stock: Result, scenario: str, layer: int, top_k: int) -> Decisions:
    """What stock decided for all tokens of the three steps."""
    parts = [stock_rows(stock, scenario, step, layer, top_k) for step in range(3)]
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def shares_that_differ(one: Decisions, other: Decisions, rtol: float) -> tuple[float, float]:
    """Rows with other experts, as a share of all rows; rows with another weight for an expert, as one of the rest."""
    (ids, weights), (other_ids, other_weights) = by_expert(*one), by_expert(*other)
    same = np.all(ids == other_ids, axis=1)
    close = np.isclose(weights[same], other_weights[same], rtol=rtol, atol=0).all(axis=1)
    return float(np.mean(~same)), float(np.mean(~close))


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("family", [*(name for name in MOE_FAMILIES if name != "grovemoe"), "trained"])
def test_ids_and_weights_are_stocks(build: Build, tmp_path: Path, family: str, capacity: str) -> None:
    """Prefill in four ubatches, then single tokens: every token, layer, id and weight."""
    path = embedded_model() if family == "trained" else model_path(family, "Q4_0")
    layers = range(8) if family == "trained" else FAMILIES[family].geometry.moe_layers
    top_k = 8 if family == "trained" else FAMILIES[family].geometry.top_k
    if family != "trained":
        layers = [layer for layer in layers if layer < FAMILIES[family].geometry.n_layer]
    plan = Plan(ModelOptions(str(path)), (prefill_and_decode(200, 2, n_ubatch=64),))
    scenario = plan.scenarios[0]
    _, log = run_logged(build, plan, tmp_path / "log", capacity)
    stock = run_reference(build, observed(plan), capacity=capacity)
    # On a GPU rounding differs: a callback cuts the graph of stock's run, and its fused kernels with it; between "0"
    # and "all" the CPU computes a part. Behind the first layer that changes the choice between experts that are nearly
    # as good. How often it does for stock itself, with its experts on the CPU and on the GPU, is the bound.
    on_gpu = reference_device() is not None
    on_cpu_stock = run_reference(build, observed(plan), capacity="0")
    on_gpu_stock = run_reference(build, observed(plan), capacity="all")
    logged = defaultdict(list)
    for event in log.events:
        logged[event["layer_id"]].append(event)
    assert sorted(logged) == list(layers)
    for layer in layers:
        expected = stock_layer(stock, scenario.name, layer, top_k)
        assert [event["token_index"] for event in logged[layer]] == list(range(202))
        logged_ids = np.array([event["expert_ids"] for event in logged[layer]])
        logged_weights = np.array([event["router_weights"] for event in logged[layer]], dtype=np.float32)
        if on_gpu:
            one, other = (stock_layer(run, scenario.name, layer, top_k) for run in (on_cpu_stock, on_gpu_stock))
            rtol = 1e-4 if layer == min(layers) else 2e-2
            found = shares_that_differ((logged_ids, logged_weights), expected, rtol)
            bound = shares_that_differ(one, other, rtol)
            slack = 0.005 if layer == min(layers) else 0.05  # one row of 202; ten
            assert found[0] <= bound[0] + slack, f"layer {layer}: other experts"
            assert found[1] <= bound[1] + slack, f"layer {layer}: other weights"
        else:
            np.testing.assert_array_equal(logged_ids, expected[0])
            np.testing.assert_array_equal(logged_weights, expected[1])
    assert {event["phase"] for event in log.events if event["token_index"] < 200} == {"prefill"}
    assert {event["phase"] for event in log.events if event["token_index"] >= 200} == {"decode"}
    assert {event["request_id"] for event in log.events} == {0}
    assert sorted({event["batch_id"] for event in log.events}) == list(range(4 + 2))
    residency = [line for line in log.others if line["type"] == "residency"]
    assert bool(residency) == (capacity not in ("0", "all"))
    assert [line for line in log.others if line not in residency] == [
        {
            "type": "end",
            "run_id": log.metadata["run_id"],
            "context_id": log.events[0]["context_id"],
            "events": 202 * len(layers),
            "lost_events": 0,
        }
    ]


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_two_families_in_a_layer(build: Build, tmp_path: Path, capacity: str) -> None:
    """GroveMoE: the second family's expert is the first's divided by the group size of the model."""
    plan = Plan(ModelOptions(str(model_path("grovemoe", "Q4_0"))), (prefill_and_decode(7),))
    _, log = run_logged(build, plan, tmp_path / "log", capacity)
    by_family = defaultdict(list)
    for event in log.events:
        by_family[event["family"]].append(event)
    assert sorted(by_family) == ["chexps", "exps"]
    layouts = {(entry["layer_id"], entry["family"]): entry for entry in log.metadata["model"]["expert_bytes"]}
    group = layouts[0, "exps"]["n_experts"] // layouts[0, "chexps"]["n_experts"]
    for first, second in zip(by_family["exps"], by_family["chexps"], strict=True):
        assert first["layer_id"] == second["layer_id"]
        assert first["token_index"] == second["token_index"]
        assert [expert // group for expert in first["expert_ids"]] == second["expert_ids"]


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_sequences_are_told_apart(build: Build, tmp_path: Path, capacity: str) -> None:
    """Two sequences in one batch: positions and requests as the batch had them."""
    plan = Plan(ModelOptions(str(model_path("qwen3moe", "Q4_0"))), (two_sequences(),))
    _, log = run_logged(build, plan, tmp_path / "log", capacity)
    expected = [
        (batch, sequence, position)
        for batch, step in enumerate(plan.scenarios[0].steps)
        for sequence, position in zip(step.sequences, step.positions, strict=True)
    ]
    for layer in range(3):
        logged = [
            (event["batch_id"], event["request_id"], event["token_index"])
            for event in log.events
            if event["layer_id"] == layer
        ]
        assert logged == expected


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_a_cleared_context_begins_a_new_request(build: Build, tmp_path: Path, capacity: str) -> None:
    """As after the stock programs' warm-up: the same cells and positions again, another request."""
    tokens = token_stream(20)
    steps = (decode(tokens[:2]), Step("remove", start=-1), decode(tokens[2:8]), decode(tokens[8:9], start=6))
    plan = Plan(ModelOptions(str(model_path("qwen35moe", "Q4_0"))), (Scenario("cleared", steps),))
    _, log = run_logged(build, plan, tmp_path / "log", capacity)
    logged = [(event["request_id"], event["token_index"]) for event in log.events if event["layer_id"] == 1]
    assert logged == [(0, 0), (0, 1), *((1, position) for position in range(7))]


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_a_layer_that_sees_output_rows_only(build: Build, tmp_path: Path, capacity: str) -> None:
    """qwen3moe's last layer runs on the rows whose logits are wanted: its events belong to those tokens."""
    plan = Plan(ModelOptions(str(model_path("qwen3moe", "Q4_0"))), (last_output_only(24),))
    _, log = run_logged(build, plan, tmp_path / "log", capacity)
    tokens = {layer: [e["token_index"] for e in log.events if e["layer_id"] == layer] for layer in range(3)}
    assert tokens == {0: list(range(25)), 1: list(range(25)), 2: [23, 24]}
    assert log.metadata["model"]["layers_with_output_rows_only"] == [2]


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_a_verified_draft_is_decode(build: Build, tmp_path: Path, capacity: str) -> None:
    """A prompt, a token with a draft of 3 of which 2 are rejected, another draft, the next part of a conversation."""
    tokens = token_stream(20)
    steps = (
        decode(tokens[:6], outputs="last"),
        decode(tokens[6:10], start=6),
        Step("remove", start=8),
        decode(tokens[10:13], start=8),
        decode(tokens[13:17], start=11, outputs="last"),
        decode(tokens[17:18], start=15),
    )
    plan = Plan(ModelOptions(str(model_path("mixtral", "Q4_0"))), (Scenario("draft", steps),))
    _, log = run_logged(build, plan, tmp_path / "log", capacity)
    logged = [(e["batch_id"], e["token_index"], e["phase"]) for e in log.events if e["layer_id"] == 0]
    assert logged == [
        *((0, position, "prefill") for position in range(6)),
        *((1, position, "decode") for position in range(6, 10)),
        *((2, position, "decode") for position in range(8, 11)),
        *((3, position, "prefill") for position in range(11, 15)),
        (4, 15, "decode"),
    ]
    assert {event["request_id"] for event in log.events} == {0}


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_an_mtp_context_has_a_log_of_its_own(build: Build, tmp_path: Path, capacity: str) -> None:
    """Trunk and MTP layer: every token, id and weight of the second context as stock's eval callback shows them."""
    tokens = token_stream(22)
    steps = (decode(tokens[:20]), decode(tokens[20:21], start=20), decode(tokens[21:], start=21))
    hidden = tuple(dataclasses.replace(step, hidden_seed=11 + index) for index, step in enumerate(steps))
    path = model_path("qwen35moe-mtp", "Q4_0")
    plan = Plan(ModelOptions(str(path)), (prefill_and_decode(7), Scenario("mtp", hidden, is_mtp=True)))
    _, trunk = run_logged(build, plan, tmp_path / "log", capacity)
    stock = run_reference(build, observed(plan), capacity=capacity)
    assert sorted({event["layer_id"] for event in trunk.events}) == [0, 1]
    context = trunk.metadata["contexts"][1]
    assert context["model"]["moe_layers"] == [2]
    mtp = read_log(tmp_path / "log", context["file"])
    assert context["file"] == f"routing-{context['context_id']}.jsonl"
    parts = [stock_rows(stock, "mtp", step, 2, FAMILIES["qwen35moe-mtp"].geometry.top_k) for step in range(3)]
    ids, weights = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    assert [(e["layer_id"], e["token_index"]) for e in mtp.events] == [(2, position) for position in range(22)]
    np.testing.assert_array_equal([event["expert_ids"] for event in mtp.events], ids)
    logged_weights = np.array([event["router_weights"] for event in mtp.events], dtype=np.float32)
    np.testing.assert_allclose(logged_weights, weights, rtol=1e-4 if reference_device() else 0, atol=0)
    assert [event["batch_id"] for event in mtp.events] == [*[0] * 20, 1, 2]
    assert {event["context_id"] for event in mtp.events} == {context["context_id"]}


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("options", [
    {"n_gpu_layers": 3},
    {"overrides": ((r"blk\.0\.ffn_(up|down|gate)_exps", "CPU"),)},
    {"overrides": ((r"blk\.[12]\.attn", "CPU"),)},
    {"overrides": ((r"blk\.1\.ffn_up_exps", "CPU"),)},
], ids=["-ngl", "-ncmoe", "-ot attn", "-ot up"])  # fmt: skip
def test_graphs_in_parts_are_logged_as_whole_ones(
    build: Build, tmp_path: Path, capacity: str, options: dict[str, Any]
) -> None:
    """The CPU computes a layer before ours: what is left of the log, positions and requests too, is as without it."""
    path = str(model_path("qwen3moe", "Q4_0"))
    scenarios = (prefill_and_decode(40, n_ubatch=16), two_sequences())
    _, whole = run_logged(build, Plan(ModelOptions(path), scenarios), tmp_path / "whole", capacity)
    plan = Plan(ModelOptions(path, **options), scenarios)
    run_logged(build, plan, tmp_path / "parted", capacity, MOECACHE_REQUIRE="")
    names = ["batch_id", "request_id", "token_index", "layer_id", "phase"]
    on_gpu = reference_device() is not None  # then layers of the CPU round otherwise, and near choices may change
    names += [] if on_gpu else ["expert_ids", "router_weights"]
    for file in ("routing.jsonl", f"routing-{whole.metadata['contexts'][1]['context_id']}.jsonl"):
        logs = [read_log(tmp_path / run, file).events for run in ("whole", "parted")]
        content = [[{name: event[name] for name in names} for event in events] for events in logs]
        layers = {event["layer_id"] for event in content[1]}
        assert len(layers) >= 2
        assert content[1] == [event for event in content[0] if event["layer_id"] in layers]
        pairs = zip(logs[1], [event for event in logs[0] if event["layer_id"] in layers], strict=True)
        assert np.mean([set(one["expert_ids"]) == set(other["expert_ids"]) for one, other in pairs]) > 0.9
        assert len(content[1]) >= 20 * len(layers)


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("family", ["qwen3moe", "grovemoe"])
def test_a_cut_block_is_logged_once(build: Build, tmp_path: Path, family: str, capacity: str) -> None:
    """An eval callback cuts the graph at the router: the same events as without it, but for what comes of copies."""
    plan = Plan(ModelOptions(str(model_path(family, "Q4_0"))), (prefill_and_decode(7),))
    sync = {"GGML_MOECACHE_SYNC": "1"}  # hits do not depend on the speed of copies
    _, whole = run_logged(build, plan, tmp_path / "whole", capacity, **sync)
    _, cut = run_logged(build, observed(plan), tmp_path / "cut", capacity, MOECACHE_REQUIRE="", **sync)

    def content(log: Log) -> list[dict[str, Any]]:
        own = ("run_id", "ready_before_next_token")
        kept = [key for key in log.events[0] if key not in own and not key.endswith("_ns")]
        return [{key: event[key] for key in kept} for event in log.events]

    assert content(cut) == content(whole)


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_a_block_without_its_down_weight_is_named_and_not_logged(build: Build, tmp_path: Path, capacity: str) -> None:
    """`-ot` puts the last expert weight of layer 1 of 2 on the CPU: its line says so, run.json leaves the layer out."""
    options = ModelOptions(str(model_path("mixtral", "Q4_0")), overrides=((r"blk\.1\.ffn_down_exps", "CPU"),))
    plan = Plan(options, (prefill_and_decode(7),))
    result, log = run_logged(build, plan, tmp_path / "log", capacity, MOECACHE_REQUIRE="")
    assert {event["layer_id"] for event in log.events} == {0}
    assert log.metadata["model"]["moe_layers"] == [0]
    assert "layer 1 is not in the routing log: its ffn_down_exps was placed elsewhere" in result.log
    assert "layer 0 is not" not in result.log


def test_warm_up_graphs_are_not_logged(build: Build, tmp_path: Path) -> None:
    """llama_set_warmup routes to all experts: no routing decision."""
    tokens = token_stream(8)
    steps = (Step("warmup", scale=1), decode(tokens[:2]), Step("warmup", scale=0), decode(tokens[2:], start=2))
    plan = Plan(ModelOptions(str(model_path("mixtral", "Q4_0"))), (Scenario("warmup", steps),))
    _, log = run_logged(build, plan, tmp_path / "log", "0")
    assert {event["token_index"] for event in log.events} == set(range(2, 8))


def test_a_small_ring_loses_nothing_silently(build: Build, tmp_path: Path) -> None:
    """512 tokens x 3 layers into 64 slots: what is not in the file is counted, in place and at the end."""
    plan = Plan(ModelOptions(str(model_path("qwen3moe", "Q4_0"))), (prefill_and_decode(512),), n_threads=8)
    n_events = 514 * 3
    ring = {"GGML_MOECACHE_LOG_RING_EVENTS": "64"}
    result, dropped = run_logged(build, plan, tmp_path / "drop", "0", MOECACHE_REQUIRE="", **ring)
    overflows = [line for line in dropped.others if line["type"] == "overflow"]
    n_lost = sum(line["lost_events"] for line in overflows)
    assert len(dropped.events) + n_lost == n_events
    assert n_lost > 0
    (end,) = (line for line in dropped.others if line["type"] == "end")
    assert (end["events"], end["lost_events"]) == (len(dropped.events), n_lost)
    assert result.status is not None
    (context,) = result.status["contexts"]
    assert (context["n_log_events"], context["n_log_lost"]) == (len(dropped.events), n_lost)
    assert f"{len(dropped.events)} events logged, {n_lost} lost" in result.log
    assert context["fallbacks"] == ["log_full"]
    assert result.log.count("moecache: log_full: ") == 1

    _, waited = run_logged(build, plan, tmp_path / "wait", "0", GGML_MOECACHE_LOG_FULL="wait", **ring)
    assert len(waited.events) == n_events
    assert waited.others[-1]["lost_events"] == 0


def test_two_contexts_write_two_files(build: Build, tmp_path: Path) -> None:
    tokens = token_stream(8)
    steps = (decode(tokens), decode(tokens, context=1))
    plan = Plan(ModelOptions(str(model_path("qwen3moe", "Q4_0"))), (Scenario("two", steps),))
    _, first = run_logged(build, plan, tmp_path / "log", "0")
    files = [context["file"] for context in first.metadata["contexts"]]
    assert files[0] == "routing.jsonl"
    assert files[1] == f"routing-{first.metadata['contexts'][1]['context_id']}.jsonl"
    second = read_log(tmp_path / "log", files[1])
    assert len(first.events) == len(second.events) == 24
    assert {event["context_id"] for event in second.events} == {first.metadata["contexts"][1]["context_id"]}


def test_run_json_has_the_layers_of_all_contexts_that_saw_output_rows_only(build: Build, tmp_path: Path) -> None:
    """The first of two contexts of one model wants all logits, the second the last one's only."""
    plan = Plan(ModelOptions(str(model_path("qwen3moe", "Q4_0"))), (prefill_and_decode(7), last_output_only()))
    _, log = run_logged(build, plan, tmp_path / "log", "0")
    assert len(log.metadata["contexts"]) == 2
    assert log.metadata["model"]["layers_with_output_rows_only"] == [2]


def test_run_json_describes_the_model(build: Build, tmp_path: Path) -> None:
    """mixtral in Q4_0: 2 layers of 8 experts, 3 matrices of 256 x 256 weights in blocks of 32 of 18 bytes."""
    plan = Plan(ModelOptions(str(model_path("mixtral", "Q4_0"))), (prefill_and_decode(7),))
    _, log = run_logged(build, plan, tmp_path / "log", "all")
    model = log.metadata["model"]
    assert (model["n_layers"], model["n_experts"], model["moe_layers"]) == (2, 8, [0, 1])
    assert model["top_k"] == FAMILIES["mixtral"].geometry.top_k
    assert model["expert_bytes"] == [
        {
            "layer_id": layer,
            "family": "exps",
            "n_experts": 8,
            "bytes": 3 * 256 * 256 // 32 * 18,
            "types": {"down": "q4_0", "gate": "q4_0", "up": "q4_0"},
        }
        for layer in range(2)
    ]
    assert log.metadata["capacity"] == "all"
    _, again = run_logged(build, plan, tmp_path / "again", "0")
    assert again.metadata["model"]["fingerprint"] == model["fingerprint"]
    other = Plan(ModelOptions(str(model_path("mixtral", "Q8_0"))), (prefill_and_decode(7),))
    _, third = run_logged(build, other, tmp_path / "other", "0")
    assert third.metadata["model"]["fingerprint"] != model["fingerprint"]


def test_a_log_is_not_overwritten_and_the_model_runs(build: Build, tmp_path: Path) -> None:
    plan = Plan(ModelOptions(str(model_path("mixtral", "Q4_0"))), (prefill_and_decode(7),))
    folder = tmp_path / "log"
    run_logged(build, plan, folder, "0")
    before = (folder / "routing.jsonl").read_bytes()
    environment = {"GGML_MOECACHE_LOG": str(folder), "MOECACHE_REQUIRE": ""}
    result = run_moecache(build, plan, capacity="0", environment=environment)
    assert (folder / "routing.jsonl").read_bytes() == before
    assert f"moecache: log_file: {folder} holds the log of another run, which is not overwritten" in result.log
    assert result.status is not None
    assert result.status["contexts"][0]["fallbacks"] == ["log_file"]


def test_a_folder_that_is_a_file(build: Build, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    plan = Plan(ModelOptions(str(model_path("mixtral", "Q4_0"))), (prefill_and_decode(7),))
    environment = {"GGML_MOECACHE_LOG": str(path), "MOECACHE_REQUIRE": ""}
    result = run_moecache(build, plan, capacity="0", environment=environment)
    assert f"moecache: log_file: {path} is a file, not a folder; name another one" in result.log
    assert path.read_text() == "mine"


def test_a_limit_on_the_length_of_files_ends_the_log_and_not_the_program(build: Build, tmp_path: Path) -> None:
    """As `ulimit -f`. The system would end the program by a signal. 300 tokens make 1.4 MB of lines."""
    log = tmp_path / "log"
    command = [build.llama_bin / "llama-completion", "-m", str(embedded_model()), "-dev", "MoECache0", "-ngl", "99"]
    command += ["-p", "SQLite is a library that", "-n", "300", "--temp", "0", "-no-cnv", "--no-warmup", "-fa", "off"]

    def run(limit_bytes: int, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = process_environment(build, capacity="0", extra={"MOECACHE_REQUIRE": "", **environment})
        return subprocess.run(
            command,
            env={**variables, "GGML_BACKEND_PATH": str(build.plugin)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes)),
        )

    free, limited = run(resource.RLIM_INFINITY), run(100_000, GGML_MOECACHE_LOG=str(log))
    assert (free.returncode, limited.returncode) == (0, 0), limited.stderr
    assert limited.stdout == free.stdout
    said = [line for line in limited.stderr.splitlines() if "log_file" in line and "File too large" in line]
    assert 1 <= len(said) <= 2  # when it happens, and how much was lost, at the end
    text = (log / "routing.jsonl").read_bytes()
    assert len(text) == 100_000
    n_stored = text.count(b"\n")
    n_events = (6 + 299) * 8
    assert f"{n_stored} events logged, {n_events - n_stored} lost" in limited.stderr
