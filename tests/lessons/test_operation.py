"""Lessons 18 to 23: faults of other expert caches in operation. `pytest -k lesson_21` runs one of them.

Lesson 20, pinning that fails, needs a device that says it can pin: tests/backend/test-lesson-20-pinning.cpp.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.programs import SAME_KERNELS, Finished, run_moecache, run_stock
from tests.e2e.server import running_server
from tests.harness.environment import Build, process_environment, reference_device
from tests.models.tokenizer import embedded_model

pytestmark = pytest.mark.skipif(reference_device() is not None, reason="small devices are the stand-in's")

EXPERT_BYTES = 13824  # of the embedded model: 3 matrices of 256 x 32 weights, 18 bytes per 32
N_EXPERTS = 1024
MIB = 1 << 20
# The small context and batches leave compute buffers of about 1 MiB.
ARGUMENTS = ("llama-completion", "-m", str(embedded_model()), "-p", "SQLite is a library", "-n", "24")
ARGUMENTS += ("--temp", "0", "-no-cnv", "--no-display-prompt", "-c", "512", "-b", "64", "-ub", "64", *SAME_KERNELS)


def our_lines(finished: Finished) -> list[str]:
    return re.findall(r"moecache: .*", finished.stderr)


def complete(build: Build, capacity: str, *options: str, device: str = "MoECache0", **environment: str) -> Finished:
    """Run, and compare the text with stock's on the CPU."""
    ours = run_moecache(
        build,
        *ARGUMENTS,
        *options,
        capacity=capacity,
        device=device,
        environment={"MOECACHE_REQUIRE": "", **environment},
    )
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout == run_stock(build, *ARGUMENTS).stdout
    return ours


@pytest.mark.parametrize(
    ("capacity", "environment", "reason"),
    [
        ("1KiB", {}, "no_cache"),
        ("auto", {"GGML_MOECACHE_DEVICE_MIB": "8"}, "no_cache"),  # the reserve of 512 MiB leaves nothing
        ("1025", {}, "no_cache"),
        ("all", {"GGML_MOECACHE_DEVICE_MIB": "8"}, "no_room"),
    ],
)
def test_lesson_18_a_cache_that_is_off_says_so(
    build: Build, capacity: str, environment: dict[str, str], reason: str
) -> None:
    """One line in the log, whatever its level, and the reason in the status; all rows are the CPU's."""
    ours = complete(build, capacity, "-fit", "off", "-ngl", "99", **environment)
    (context,) = [context for context in (ours.status or {})["contexts"] if context["state"] != "idle"]
    assert (context["state"], context["reason"], context["n_hits"]) == ("inactive", reason, 0)
    assert [line.startswith(f"moecache: inactive: {reason}: ") for line in our_lines(ours)] == [True, False]


def test_lesson_18_experts_are_never_too_small(build: Build) -> None:
    """13.5 KiB an expert: one slot is a cache."""
    context = complete(build, "1").active_context()
    assert (context["state"], context["n_resident"]) == ("active", 1)
    assert context["n_copies"] > 0


@pytest.mark.parametrize("capacity", ["25%", "all"])
def test_lesson_19_slots_are_on_the_device_of_their_layer(build: Build, capacity: str) -> None:
    """A model over two devices: each has the store and the slots of its own layers, and no other's."""
    ours = complete(
        build, capacity, "-ngl", "99", "-ts", "1,1", device="MoECache0,MoECache1", GGML_MOECACHE_STANDIN="2"
    )
    contexts = [context for context in (ours.status or {})["contexts"] if context["state"] == "active"]
    assert [context["device"] for context in contexts] == ["MoECache0", "MoECache1"]
    assert sum(context["n_layers"] for context in contexts) == 8
    for context in contexts:
        assert 0 < context["n_layers"] < 8
        assert context["n_layers_elsewhere"] == 8 - context["n_layers"]
        assert context["n_experts"] == 128 * context["n_layers"]
        assert context["n_resident"] == context["n_experts"] // (4 if capacity == "25%" else 1)
        assert context["store_bytes"] == context["n_experts"] * EXPERT_BYTES
        assert context["resident_bytes"] >= context["n_resident"] * EXPERT_BYTES
        assert context["n_hits"] > 0


def test_lesson_21_slots_take_what_the_rest_has_left(build: Build) -> None:
    """`auto` on a device of 16 MiB, where layers, KV cache and compute buffers come first."""
    settings = {"GGML_MOECACHE_DEVICE_MIB": "16", "GGML_MOECACHE_RESERVE_MIB": "0"}
    context = complete(build, "auto", "-fit", "off", "-ngl", "99", **settings).active_context()
    assert context["state"] == "active"
    assert N_EXPERTS // 2 < context["n_resident"] < N_EXPERTS
    assert context["resident_bytes"] > 16 * MIB // 2
    assert context["fallbacks"] == []


def test_lesson_21_a_draft_model_has_room_beside_slots(build: Build) -> None:
    """The draft model (3.2 MiB of layers) is loaded before the target's first token: `auto` finds what both have left,
    and who computes first takes it."""
    options = ("-m", str(embedded_model()), "-md", str(embedded_model()), "--spec-type", "draft-simple")
    options += ("-devd", "MoECache0", "-ngl", "99", "-ngld", "99", "-fit", "off", "-np", "1")
    options += ("-c", "512", "-b", "64", "-ub", "64")
    answers = []
    settings = {"GGML_MOECACHE_DEVICE_MIB": "18", "GGML_MOECACHE_RESERVE_MIB": "0", "MOECACHE_REQUIRE": ""}
    for capacity in ("0", "auto"):
        with running_server(build, *options, capacity=capacity, environment=settings) as server:
            answers.append(server.complete("SQLite is a library", 24)["content"])
    assert answers[0] == answers[1]
    contexts = [context for context in (server.status or {})["contexts"] if context["state"] != "idle"]
    assert len(contexts) == 2
    assert sum(context["n_experts"] for context in contexts) == 2 * N_EXPERTS
    assert 0 < sum(context["resident_bytes"] for context in contexts) < (18 - 2 * 3.2) * MIB


def test_lesson_22_an_explicit_size_is_kept_and_fitted_around(build: Build) -> None:
    """3 MiB of slots on a device of 24 MiB and a context that --fit may choose: it leaves them, to the expert."""
    arguments = [argument for argument in ARGUMENTS[1:] if argument not in ("-c", "512", "-b", "-ub", "64")]
    sizes = []
    for capacity in ("0", "3MiB"):
        ours = run_moecache(
            build, ARGUMENTS[0], *arguments, "-fit", "on", "-fitt", "1", "-lv", "4", capacity=capacity,
            environment={"GGML_MOECACHE_DEVICE_MIB": "24"},
        )  # fmt: skip
        assert ours.returncode == 0, ours.stderr
        assert "offloaded 9/9 layers to GPU" in ours.stderr
        sizes.append(int(re.findall(r"llama_context: n_ctx += (\d+)", ours.stderr)[0]))
    context = ours.active_context()
    assert context["n_resident"] == 3 * MIB // EXPERT_BYTES
    assert context["fallbacks"] == []
    assert sizes[1] < sizes[0]


FAILED_LOADS = """
import json, sys
import ggml_moecache
from ggml_moecache import config
good, cut = ggml_moecache.embedded_model(), sys.argv[1]
def load(path, **options):
    return ggml_moecache.load_model(path, capacity="25%", n_ctx=512, n_batch=64, verbose=False, **options)
def text(llm):
    return llm.create_completion("SQLite is", max_tokens=8, temperature=0)["choices"][0]["text"]
first = load(good)
texts = [text(first)]
errors = []
for path, mib in ((cut, None), (good, "1"), (cut, None)):
    try:
        if mib is not None:
            config.set_value("GGML_MOECACHE_DEVICE_MIB", mib)
        load(path)
    except ggml_moecache.MoeCacheError as error:
        errors.append(str(error))
    finally:
        if mib is not None:
            config.set_value("GGML_MOECACHE_DEVICE_MIB", None)
texts.append(text(first))
first.close()
texts.append(text(load(good)))
print(json.dumps({"texts": texts, "errors": errors}))
"""


def test_lesson_23_a_failed_load_leaves_the_process_and_its_models(build: Build, tmp_path: Path) -> None:
    """Weights cut off, then a device without room for the layers: one exception each; a model that was loaded before
    goes on, and another one can be loaded."""
    contents = embedded_model().read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(contents[: len(contents) // 2])
    done = subprocess.run(
        [sys.executable, "-c", FAILED_LOADS, str(cut)],
        env=process_environment(build, capacity="25%", extra={"MOECACHE_REQUIRE": ""}),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert len(answer["errors"]) == 3
    assert "truncated" in answer["errors"][0]
    assert answer["texts"][0] == answer["texts"][1] == answer["texts"][2] != ""


@pytest.mark.parametrize("capacity", ["25%", "all"])
def test_lesson_23_a_program_whose_load_fails_ends_with_its_own_error(
    build: Build, tmp_path: Path, capacity: str
) -> None:
    cut = tmp_path / "cut.gguf"
    contents = embedded_model().read_bytes()
    cut.write_bytes(contents[: len(contents) // 2])
    arguments = [str(cut) if argument == str(embedded_model()) else argument for argument in ARGUMENTS]
    ours = run_moecache(build, *arguments, capacity=capacity)
    assert ours.returncode == 1, ours.stderr  # a signal would be negative
