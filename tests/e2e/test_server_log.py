"""llama-server with the model's own MTP layer as draft: two contexts, two logs, counted against its answers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pyanalysis.traces import check_trace, read_trace
from pyanalysis.traces.log import raise_problem
from tests.e2e.server import running_server
from tests.harness.environment import Build
from tests.models.generate import model_path

MOECACHE = Path(sys.executable).with_name("moecache")
PROMPTS = ("SQLite is a library that", "def quicksort(items):\n")
N_PREDICT = 24


def moecache(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([MOECACHE, *arguments], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("capacity", ["0", "all"])
def test_mtp_drafts_are_logged_beside_the_target(build: Build, tmp_path: Path, capacity: str) -> None:
    folder = tmp_path / "log"
    model = model_path("qwen35moe-mtp", "Q4_0")
    options = ("-m", str(model), "-np", "1", "-c", "1024", "--spec-type", "draft-mtp")
    environment = {"GGML_MOECACHE_LOG": str(folder)}
    with running_server(build, *options, capacity=capacity, environment=environment) as server:
        timings = [server.complete(prompt, N_PREDICT)["timings"] for prompt in PROMPTS]
    run = json.loads((folder / "run.json").read_text())
    by_layers = {tuple((c["model"] or run["model"])["moe_layers"]): c["file"] for c in run["contexts"]}
    assert sorted(by_layers) == [(0, 1), (2,)]
    target, draft = (read_trace(folder / by_layers[layers]) for layers in ((0, 1), (2,)))
    for trace in (target, draft):
        check_trace(trace, raise_problem)
        assert trace.complete
        assert trace.n_lost == 0
    assert set(target.layer) == {0, 1}
    assert set(draft.layer) == {2}

    # The target computes each prompt, then, in every step, the newest token and its draft. A step gives one token more
    # than it accepts; the first token comes from the prompt.
    first = target.layer == 0
    for request, timing in enumerate(timings, 1):  # request 0 is llama.cpp's warm-up
        n_steps = N_PREDICT - 1 - timing["draft_n_accepted"]
        mine = first & (target.request == request)
        assert (mine & (target.phase == 0)).sum() == timing["prompt_n"]
        assert (mine & (target.phase == 1)).sum() == n_steps + timing["draft_n"]
        assert len(set(target.batch[mine & (target.phase == 1)])) == n_steps
    assert (target.layer == 1).sum() == first.sum()

    # The MTP layer takes in every position that the target has computed, and drafts token by token.
    for request, timing in enumerate(timings, 1):
        mine = draft.request == request
        given = draft.token[mine & (draft.phase == 0)]
        assert given[: timing["prompt_n"]].tolist() == list(range(timing["prompt_n"]))
        drafted = mine & (draft.phase == 1)
        assert drafted.sum() >= timing["draft_n"]
        assert len(set(draft.batch[drafted])) == drafted.sum()
    assert set(target.token[first]) <= set(draft.token)


@pytest.mark.parametrize("cached", [True, False])
def test_requests_of_a_server_that_keeps_prompts(build: Build, tmp_path: Path, cached: bool) -> None:
    """What the answers say was computed is in the log: from position `cache_n` on, under an id as FORMAT.md says.

    The fourth request keeps the beginning of the third, which goes on for more than 64 tokens.
    """
    folder = tmp_path / "log"
    begin = "SQLite is a library that provides a database"
    words = " ".join(f"word{i}" for i in range(60))
    prompts = [begin, f"{begin} for small things", f"{begin} {words}", f"{begin} of its own"]
    options = ("-m", str(model_path("qwen3moe", "Q4_0")), "-np", "1", "-c", "1024", "--no-warmup")
    options += () if cached else ("--no-cache-prompt",)
    with running_server(build, *options, capacity="0", environment={"GGML_MOECACHE_LOG": str(folder)}) as server:
        timings = [server.complete(prompt, 8, cache_prompt=None)["timings"] for prompt in prompts]
    log = read_trace(folder)
    first = log.layer == 0
    requests, tokens = log.request[first], log.token[first]
    n_computed = [timing["prompt_n"] + timing["predicted_n"] - 1 for timing in timings]
    end = len(tokens)
    begins = [end - sum(n_computed[i:]) for i in range(4)]  # behind the server's own empty runs
    kept = [timing["cache_n"] for timing in timings]
    assert [n > 0 for n in kept] == [False, cached, cached, cached]
    for i, at in enumerate(begins):
        assert tokens[at : at + n_computed[i]].tolist() == list(range(kept[i], kept[i] + n_computed[i]))
    ids = [set(requests[at : at + n].tolist()) for at, n in zip(begins, n_computed, strict=True)]
    assert [len(one) for one in ids] == [1] * 4
    numbers = [one.pop() - int(requests[begins[0]]) for one in ids]
    assert numbers == ([0, 0, 0, 1] if cached else [0, 1, 2, 3])


def test_tools_say_what_the_two_logs_are(build: Build, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    options = ("-m", str(model_path("qwen35moe-mtp", "Q4_0")), "-np", "1", "-c", "1024", "--spec-type", "draft-mtp")
    with running_server(build, *options, capacity="0", environment={"GGML_MOECACHE_LOG": str(folder)}) as server:
        server.complete(PROMPTS[0], 4)
    logs = sorted(path.name for path in folder.glob("routing*.jsonl"))
    assert len(logs) == 2
    shown = moecache("trace", "show", str(folder))
    assert shown.stdout.count("events    ") == 2
    checked = moecache("trace", "check", str(folder))
    assert (checked.returncode, checked.stdout.count(": valid, ")) == (0, 2)
    ambiguous = moecache("trace", "convert", str(folder), str(tmp_path / "out.parquet"))
    assert ambiguous.returncode == 2
    assert "holds 2 logs (routing.jsonl, routing-" in ambiguous.stderr
    assert "name one of them; each is of a context of its own, such as the target and its draft" in ambiguous.stderr
    merged = moecache("trace", "merge", *(str(folder / name) for name in logs), str(tmp_path / "out.parquet"))
    assert merged.returncode == 2
    assert "these are not devices of one context. The context of a draft model or an MTP layer has" in merged.stderr
    assert not (tmp_path / "out.parquet").exists()
    assert moecache("trace", "convert", str(folder / logs[0]), str(tmp_path / "one.parquet")).returncode == 0
