"""The status file tells what was computed where; the figures are worked out from the plan and the model's geometry."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.harness.difference import compare
from tests.harness.environment import Build, process_environment, reference_device
from tests.harness.plan import ModelOptions, Plan, Scenario, Step, decode
from tests.harness.runner import Result, run_moecache, run_reference
from tests.harness.scenarios import prefill_and_decode, token_stream
from tests.models.families.grovemoe import EXPERTS_PER_GROUP
from tests.models.families.table import FAMILIES, MOE_FAMILIES, Family
from tests.models.generate import model_path
from tests.models.tokenizer import embedded_model

# 7 + 2 tokens in one context, 40 + 2 in another, all with logits, so that no layer drops rows.
PLAN_TOKENS = (9, 42)
PLAN_GRAPHS = (3, 3)


def _run(build: Build, family: str, capacity: str) -> Result:
    scenarios = (prefill_and_decode(7), prefill_and_decode(40))
    return run_moecache(build, Plan(ModelOptions(str(model_path(family, "Q4_0"))), scenarios), capacity=capacity)


def _contexts(result: Result) -> list[dict[str, Any]]:
    """The contexts that computed something, in order of creation."""
    assert result.status is not None
    return [context for context in result.status["contexts"] if context["state"] != "idle"]


def _rows_per_token(family: Family) -> int:
    """(expert, token) products per token: top_k in each MoE layer and expert family."""
    geometry = family.geometry
    per_layer = geometry.top_k
    if family.n_expert_family == 2:
        per_layer += min(geometry.top_k, geometry.n_expert // EXPERTS_PER_GROUP)
    return per_layer * (geometry.n_layer - geometry.n_dense_lead)


@pytest.mark.parametrize("capacity", ["0", "all"])
@pytest.mark.parametrize("name", MOE_FAMILIES)
def test_counts(build: Build, name: str, capacity: str) -> None:
    """Every row of every token once, on the CPU at capacity 0 and on the device at "all"."""
    family = FAMILIES[name]
    n_layer = family.geometry.n_layer - family.geometry.n_dense_lead
    result = _run(build, name, capacity)
    contexts = _contexts(result)
    assert len(contexts) == len(PLAN_TOKENS)
    for context, n_token, n_graph in zip(contexts, PLAN_TOKENS, PLAN_GRAPHS, strict=True):
        n_row = n_token * _rows_per_token(family)
        assert context["state"] == "active"
        assert context["reason"] == "none"
        assert context["fallbacks"] == []
        assert context["device"] == "MoECache0"
        assert context["capacity"] == capacity
        assert context["n_layers"] == n_layer
        assert context["n_layers_elsewhere"] == 0
        assert context["n_experts"] == family.n_expert_total
        assert context["n_resident"] == (family.n_expert_total if capacity == "all" else 0)
        assert context["n_graphs"] == n_graph
        assert context["n_warmup_graphs"] == 0
        assert context["n_events"] == n_token * n_layer * family.n_expert_family
        assert context["n_hits"] == (n_row if capacity == "all" else 0)
        assert context["n_misses"] == (0 if capacity == "all" else n_row)
        assert context["closed"] is True


@pytest.mark.parametrize("capacity", ["0", "all"])
def test_bytes(build: Build, capacity: str) -> None:
    """mixtral in Q4_0: 2 layers x 3 tensors x 8 experts of 256 x 256 weights, 18 bytes per 32 weights."""
    context = _contexts(_run(build, "mixtral", capacity))[0]
    expert_bytes = 2 * 3 * 8 * 256 * 256 * 18 // 32
    assert expert_bytes <= context["store_bytes"] < expert_bytes + 4096
    if capacity == "0":
        assert context["resident_bytes"] == 0
    else:
        # Padding behind each tensor's last expert is allowed, a page per tensor.
        assert expert_bytes <= context["resident_bytes"] < expert_bytes + 6 * 4096


@pytest.mark.parametrize("capacity", ["0", "all"])
def test_lines(build: Build, capacity: str) -> None:
    """One status line per context that computes, one exit line each."""
    log = _run(build, "mixtral", capacity).log
    share = "16 of 16 experts (100 %)" if capacity == "all" else "0 of 16 experts (0 %)"
    status = [line for line in log.splitlines() if "moecache: active: " in line]
    assert len(status) == len(PLAN_TOKENS)
    assert all(f"moecache: active: {share} in " in line and " on MoECache0 " in line for line in status)
    exits = [line for line in log.splitlines() if "moecache: exit: " in line]
    assert len(exits) == len(PLAN_TOKENS)


# Stock is not deterministic when a top-1 model uses all experts: two threads copy a strided view onto itself.
WARMUP_FAMILIES = tuple(name for name in MOE_FAMILIES if FAMILIES[name].geometry.top_k > 1)


@pytest.mark.parametrize("capacity", ["0", "all"])
@pytest.mark.parametrize("name", WARMUP_FAMILIES)
def test_warmup(build: Build, name: str, capacity: str) -> None:
    """llama_set_warmup routes every token to all experts: computed as stock, counted as a warm-up and nowhere else."""
    tokens = token_stream(8)
    steps = (
        Step("warmup", scale=1),
        decode(tokens[:2]),
        Step("warmup", scale=0),
        Step("remove", start=-1),
        decode(tokens[2:]),
    )
    plan = Plan(ModelOptions(str(model_path(name, "Q4_0"))), (Scenario("warmup", steps),))
    result = run_moecache(build, plan, capacity=capacity)
    expected, actual = run_reference(build, plan, capacity=capacity).logits(), result.logits()
    if reference_device() is not None and capacity == "all":
        # The copies are made after the warm-up, which the CPU computes: other kernels than stock's on that GPU.
        expected.pop("warmup/1")
        actual.pop("warmup/1")
    difference = compare(expected, actual)
    assert difference.equal, str(difference)
    context = _contexts(result)[0]
    family = FAMILIES[name]
    assert (context["n_warmup_graphs"], context["n_graphs"]) == (1, 1)
    assert context["n_hits"] + context["n_misses"] == 6 * _rows_per_token(family)


@pytest.mark.parametrize("capacity", ["0", "all"])
def test_dense_model(build: Build, capacity: str) -> None:
    """A model without experts is computed all the same and says why nothing is cached."""
    result = _run(build, "dense", capacity)
    contexts = _contexts(result)
    assert [context["state"] for context in contexts] == ["inactive", "inactive"]
    assert {context["reason"] for context in contexts} == {"no_expert_tensors"}
    assert "moecache: inactive: no_expert_tensors: " in result.log
    assert "moecache: active" not in result.log


def _complete(
    build: Build, tmp_path: Path, model: Path, *options: str, status: Path | None = None, **environment: str
) -> dict[str, Any]:
    """Run llama-completion; the context that its status file describes, {} if `status` names another place for it."""
    place = status or tmp_path / "status.json"
    variables = process_environment(
        build, capacity="all", extra={"GGML_BACKEND_PATH": str(build.plugin), **environment}
    )
    command = [build.llama_bin / "llama-completion", "-m", model, "--device", "MoECache0", "-no-cnv", "-n", "4"]
    command += ["--temp", "0", "--no-repack", "-p", "hello", *options]
    result = subprocess.run(
        command,
        env=variables | {"GGML_MOECACHE_STATUS": str(place)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    if status is not None:
        return {}
    (context,) = json.loads(place.read_text())["contexts"]
    return context


def test_a_layer_without_rows(build: Build, tmp_path: Path) -> None:
    """Ubatches without wanted logits give the last layer no rows, and it is the only one on the device."""
    prompt = ("-p", "abcde fgh " * 12, "-ngl", "2", "-ub", "32", "-b", "128", "-c", "512", "--no-warmup")
    for capacity in ("0", "all"):
        model = model_path("qwen3moe", "Q4_0")
        context = _complete(build, tmp_path, model, *prompt, GGML_MOECACHE_CAPACITY=capacity)
        assert (context["state"], context["n_layers"]) == ("active", 1)


def test_a_model_that_uses_all_its_experts(build: Build, tmp_path: Path) -> None:
    """Its graphs look like a warm-up for ever: only the first ones are taken for one."""
    override = ("--override-kv", "qwen35moe.expert_used_count=int:128")
    context = _complete(build, tmp_path, embedded_model(), *override)
    assert (context["state"], context["n_resident"]) == ("active", 1024)
    assert context["n_hits"] > 0


@pytest.mark.parametrize("options", [("-nkvo",), ("-ot", "output=CPU"), ("-ot", r"blk\.3\.attn=CPU")])
def test_figures_of_a_graph_in_several_parts(build: Build, tmp_path: Path, options: tuple[str, ...]) -> None:
    """1 token of prompt and 3 more after it, 2 of warm-up: 5 graphs, 6 tokens, all experts resident, all rows hits."""
    context = _complete(build, tmp_path, embedded_model(), *options)
    n_token = context["n_events"] // 8
    assert (context["n_experts"], context["n_resident"], context["n_copies"]) == (1024, 1024, 1024)
    assert context["n_hits"] == n_token * 8 * 8
    assert context["n_misses"] == 0
    assert context["n_graphs"] == _complete(build, tmp_path, embedded_model())["n_graphs"]


def test_what_is_no_plain_file_is_written_not_replaced(build: Build, tmp_path: Path) -> None:
    """What a link names is written, and the link stays one; a pipe gets the JSON, once when it is known and at exit."""
    target, link, pipe = tmp_path / "target.json", tmp_path / "link.json", tmp_path / "pipe"
    target.write_text("old")
    link.symlink_to(target)
    _complete(build, tmp_path, embedded_model(), status=link)
    assert link.is_symlink()
    assert json.loads(target.read_text())["contexts"]
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        _complete(build, tmp_path, embedded_model(), status=pipe)
        lines = os.read(reader, 1 << 16).decode().splitlines()
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert [json.loads(line)["contexts"][0]["closed"] for line in lines] == [False, True]
