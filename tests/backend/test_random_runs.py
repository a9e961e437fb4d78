"""Random models, placements, batches and settings of the cache: stock's bits, and a log that holds together.

Each case is drawn from its number alone. More of them: MOECACHE_RANDOM_RUNS=1000:1400 in the environment.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness.environment import Build, reference_device
from tests.harness.exact import assert_as_stock
from tests.harness.plan import ModelOptions, Plan, Scenario, Step, decode
from tests.harness.runner import run_moecache
from tests.harness.scenarios import token_stream
from tests.models.families.table import MOE_FAMILIES
from tests.models.generate import model_path
from tests.models.lora import adapter_path
from tests.models.tokenizer import embedded_model

pytestmark = pytest.mark.skipif(reference_device() is not None, reason="bits of hits and misses are the stand-in's")

WITH_ADAPTER = ("qwen3moe", "mixtral", "gpt-oss", "olmoe", "grovemoe", "qwen3moe-scaled")
EXPERTS = r"ffn_(up|down|gate|gate_up)_(ch|)exps"
PLACEMENTS: tuple[dict[str, Any], ...] = (
    {},
    {"n_gpu_layers": 2},
    {"overrides": ((rf"blk\.0\.{EXPERTS}", "CPU"),)},
    {"overrides": ((r"blk\.1\.ffn_down_exps", "CPU"),)},
    {"overrides": ((r"blk\.1\.ffn_up_exps", "CPU"),)},
    {"overrides": ((r"attn", "CPU"),)},
    {"load_mode": 0},
)
POLICIES = ("lru", "cumulative-lfu", "decayed-lfu:half-life=8", "random:seed=2", "interval-refresh:every=4", "lfru")
CAPACITIES = ("1", "3", "7", "10%", "30%", "80%", "100%", "100KiB", "1MiB", "auto")


def _numbers() -> range:
    first, last = os.environ.get("MOECACHE_RANDOM_RUNS", "0:12").split(":")
    return range(int(first), int(last))


def _batch(draw: random.Random, positions: list[int]) -> Step:
    """Tokens of some of the sequences, sometimes more than the 32 that go through the cache."""
    tokens: list[tuple[int, int, int]] = []
    for sequence, start in enumerate(positions):
        n = draw.choice([1, 1, 1, 2, 9] if len(positions) > 1 else [1, 1, 1, 2, 8, 31, 33, 64])
        if sequence == 0 or draw.random() < 0.7:
            tokens += [(t, start + i, sequence) for i, t in enumerate(token_stream(n, seed=draw.randrange(9999)))]
            positions[sequence] += n
    wanted = [1] * len(tokens)
    if len(positions) == 1 and draw.random() < 0.5:
        wanted[:-1] = [0] * (len(wanted) - 1)
    ids, places, sequences = zip(*tokens, strict=True)
    return Step("decode", ids, places, sequences, tuple(wanted))


def _scenario(draw: random.Random, name: str, family: str) -> Scenario:
    positions = [0] * draw.choice([1, 1, 2, 4])
    steps: list[Step] = []
    for _ in range(draw.randint(4, 8)):
        if family in WITH_ADAPTER and draw.random() < 0.15:
            steps.append(Step("lora", path=str(adapter_path(family)), scale=draw.choice([0.0, 0.5, 1.0])))
        steps.append(_batch(draw, positions))
    return Scenario(
        name,
        (*steps, decode([5], start=positions[0])),
        n_ubatch=draw.choice([512, 40, 16]),
        n_seq_max=len(positions),
        kv_unified=draw.random() < 0.5,
        flash_attn=draw.choice([0, 1]),
    )


@pytest.mark.parametrize("number", _numbers())
def test_a_random_run(build: Build, tmp_path: Path, number: int) -> None:
    draw = random.Random(number)  # noqa: S311 - a test draws, nothing is secret
    family = draw.choice([*MOE_FAMILIES, "trained"])
    type_name = draw.choice(["Q4_0", "F32", "Q4_K+Q6_K"])
    path = embedded_model() if family == "trained" else model_path(family, type_name, build.llama_bin)
    scenarios = tuple(_scenario(draw, f"context-{i}", family) for i in range(draw.choice([1, 2])))
    plan = Plan(ModelOptions(str(path), **draw.choice(PLACEMENTS)), scenarios, draw.choice([1, 2, 3]))
    capacity = draw.choice(CAPACITIES)
    settings = {
        "GGML_MOECACHE_POLICY": draw.choice(POLICIES),
        "GGML_MOECACHE_PER_LAYER": draw.choice("01"),
        "GGML_MOECACHE_SYNC": draw.choice("01"),
        "GGML_MOECACHE_STANDIN_COPY_DELAY_US": draw.choice(["0", "100", "5000"]),
        "GGML_MOECACHE_LOG": str(tmp_path / "log"),
        "GGML_MOECACHE_LOG_RING_EVENTS": draw.choice(["64", "4096"]),
        "GGML_MOECACHE_LOG_FULL": draw.choice(["drop", "wait"]),
        "MOECACHE_REQUIRE": "",
    }
    result = run_moecache(build, plan, capacity=capacity, environment=settings)
    assert_as_stock(build, plan, result.logits(), capacity=capacity)
    if (tmp_path / "log").exists():
        command = [sys.executable, "-c", "import sys; from pyanalysis.cli import main; sys.exit(main())"]
        command += ["trace", "check", str(tmp_path / "log")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "valid" in done.stdout
        assert done.returncode == 0, done.stdout + done.stderr
