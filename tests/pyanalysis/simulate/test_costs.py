"""The cost models that ship: against their schema, and their figures worked out again from the sources they name."""

from __future__ import annotations

import pytest

from ggml_moecache.errors import ConfigError
from pyanalysis import cost, costs

N_LAYERS, TOP_K = 40, 8


def tokens_per_s(model: cost.CostModel, n_misses: int) -> float:
    """With this many misses in every event; the formula is in pyanalysis/cost.py."""
    cpu = model.cpu_event_ns + n_misses * model.cpu_miss_ns if n_misses else 0
    layer = model.other_layer_ns + max((TOP_K - n_misses) * model.gpu_hit_ns, cpu)
    return 1e9 / (N_LAYERS * layer + model.other_token_ns)


def test_shipped_names():
    assert costs.names() == ["h200", "h200-calibrated", "rtx-4060-ti"]


@pytest.mark.parametrize("name", ["h200", "h200-calibrated", "rtx-4060-ti"])
def test_shipped_models_obey_the_schema_and_name_their_sources(name):
    model = costs.load(name)
    assert model.name == name
    assert len(model.sources) > 1
    # Q4_K has 144 bytes for 256 weights, Q6_K 210; an expert is three matrices of 2,048 x 512.
    q4, q6 = (2048 * 512 // 256 * size for size in (144, 210))
    assert model.expert_bytes == (3 * q4 + 2 * q4 + q6) / 2


def test_h200_gives_the_measured_speeds():
    """Measured: 231 tokens/s with hits only, 84 without any, on the same machine and geometry."""
    model = costs.load("h200")
    assert tokens_per_s(model, 0) == pytest.approx(231, abs=0.1)
    assert tokens_per_s(model, TOP_K) == pytest.approx(84, abs=0.1)


def test_h200_copies_take_the_measured_time():
    """Measured: 34 us for 1.77 MB, 45 GB/s for 0.59 MB."""
    model = costs.load("h200")
    for n_bytes, measured_us in ((1.77e6, 34), (0.59e6, 0.59e6 / 45e3)):
        took_us = (model.copy_latency_ns + n_bytes / model.copy_bandwidth_bytes_per_s * 1e9) / 1000
        assert took_us == pytest.approx(measured_us, rel=0.03)


def test_calibrated_h200_gives_back_what_was_measured():
    """Decode took 4,362 us a token with everything resident and 15,101 us with nothing; a copy of an expert 44 us."""
    model = costs.load("h200-calibrated")
    assert 1e6 / tokens_per_s(model, 0) == pytest.approx(4362, rel=1e-3)
    assert 1e6 / tokens_per_s(model, TOP_K) == pytest.approx(15101, rel=1e-3)
    assert model.copy_ns(1_896_192) == pytest.approx(44_041, rel=1e-4)


def test_consumer_example_is_what_its_sources_say():
    model = costs.load("rtx-4060-ti")
    assert model.gpu_hit_ns == pytest.approx(model.expert_bytes / (0.80 * 288), rel=1e-3)
    assert model.cpu_miss_ns == pytest.approx(model.expert_bytes / (0.75 * 2 * 8 * 5.6), rel=1e-3)
    assert model.copy_bandwidth_bytes_per_s == pytest.approx(0.87 * 8 * 16e9 * 128 / 130 / 8, rel=1e-3)
    assert model.other_layer_ns == pytest.approx(1756 * 2**20 / (0.80 * 288) / N_LAYERS, rel=1e-3)
    assert model.copy_event_ns == 3 * 3_100


def test_a_file_is_taken_too(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text((cost.SCHEMA_PATH.parent / "costs" / "h200.json").read_text().replace('"h200"', '"mine"'))
    assert costs.load(str(path)).name == "mine"


def test_unknown_name():
    with pytest.raises(
        ConfigError, match=r"'h100' is no cost model: .* ships with moecache \(h200, h200-calibrated, rtx-4060-ti\)"
    ):
        costs.load("h100")
