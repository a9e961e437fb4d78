"""The published hit rates of shared/traces/README.md: one cache per layer, copies there at the next token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pyanalysis import sweep, traces
from pyanalysis.simulation import EventStream

SHARED = Path(__file__).resolve().parents[4] / "shared" / "traces"
CAPACITIES = ["12.5%", "25%", "50%"]

# policy: hit rates at CAPACITIES, as in the table
TABLE = {
    "deepseek-v2-lite-intent": {
        "lru": [0.308, 0.504, 0.735],
        "cumulative-lfu:tie=recency": [0.331, 0.528, 0.779],
        "belady": [0.541, 0.715, 0.882],
        "hindsight-static": [0.332, 0.530, 0.782],
    },
    "deepseek-v2-lite-law": {
        "lru": [0.333, 0.495, 0.728],
        "cumulative-lfu:tie=recency": [0.273, 0.445, 0.706],
        "belady": [0.542, 0.711, 0.882],
        "hindsight-static": [0.274, 0.447, 0.708],
    },
    "tiny-qwen35moe-256": {
        "lru": [0.603, 0.849, 0.977],
        "cumulative-lfu:tie=recency": [0.726, 0.893, 0.982],
        "belady": [0.806, 0.936, 0.990],
        "hindsight-static": [0.726, 0.894, 0.983],
    },
    "kimi-linear-48b": {
        "lru": [0.584, 0.729, 0.867],
        "cumulative-lfu:tie=recency": [0.553, 0.718, 0.875],
        "belady": [0.746, 0.845, 0.910],
        "hindsight-static": [0.583, 0.765, 0.942],
    },
}
FIRST_TOKENS = {"tiny-qwen35moe-256": 16_384}


def shared_trace(name, tmp_path):
    path = SHARED / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"needs {name}.npz of ../shared/traces, which is not part of the project")
    if name in FIRST_TOKENS:
        with np.load(path) as arrays:
            cut = {"ids": arrays["ids"][: FIRST_TOKENS[name]], "n_experts": arrays["n_experts"]}
        path = tmp_path / f"{name}.npz"
        np.savez(path, **cut)
    return traces.read_trace(path)


@pytest.mark.parametrize("name", TABLE)
def test_the_published_hit_rates_are_reproduced(name, tmp_path):
    stream = EventStream.of(shared_trace(name, tmp_path))
    results = sweep([stream], list(TABLE[name]), CAPACITIES, per_layer=True)
    found = {policy: [round(r.hit_rate, 3) for r in results if r.policy == policy] for policy in TABLE[name]}
    assert found == TABLE[name]


def test_shuffled_tokens_lose_the_locality(tmp_path):
    """LRU .168 / .329 / .610 on law; which draw that was is not published."""
    trace = shared_trace("deepseek-v2-lite-law", tmp_path)
    ids = trace.ids.reshape(len(trace.tokens), -1, trace.ids.shape[1])
    shuffled = np.random.default_rng(1).permutation(ids)
    path = tmp_path / "shuffled.npz"
    np.savez(path, ids=shuffled, n_experts=64)
    results = sweep([traces.read_trace(path)], ["lru"], CAPACITIES, per_layer=True)
    assert [r.hit_rate for r in results] == pytest.approx([0.168, 0.329, 0.610], abs=0.01)
