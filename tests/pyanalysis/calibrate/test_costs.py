"""From measurements to costs, worked out by hand for a machine that behaves exactly as the cost model says."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyanalysis.calibrate.calibration import thread_counts
from pyanalysis.calibrate.costs import Measured, costs_of
from pyanalysis.calibrate.experts import Geometry, Layer, Matrix
from pyanalysis.calibrate.measure import CopyTimes
from pyanalysis.calibrate.spread import Line, Spread

N_LAYERS, TOP_K = 10, 4


def exactly(value: float) -> Spread:
    return Spread(value, value, value, 5)


def layer(index: int, down_bytes: int = 60, n_experts: int = 2) -> Layer:
    path = Path("model.gguf")
    up = Matrix("up", 2, "q4_0", (4, 3, n_experts), 40 * n_experts, path, 0)
    down = Matrix("down", 2, "q4_0", (3, 4, n_experts), down_bytes * n_experts, path, 80)
    return Layer(index, {"up": up, "down": down})


GEOMETRY = Geometry(Path("model.gguf"), "test", TOP_K, tuple(layer(i) for i in range(N_LAYERS)))


def measured() -> Measured:
    """2 us + 10 us a miss on 4 threads, 20 us a miss on 1; 5 us + 3 us a hit; 2 GB/s and 50 ns a copy of 100 bytes,
    beside which an event of two misses takes 0.7 us longer.

    A layer takes 100 us with hits only. Without any it takes 88 + 12 + 4 * 10 us: 12 us hand over to the CPU and back.
    """
    cpu = {
        1: {n: exactly(20_000 * n) for n in range(1, TOP_K + 1)},
        4: {n: exactly(2_000 + 10_000 * n) for n in range(1, TOP_K + 1)},
    }
    hits = {n: exactly(5_000 + 3_000 * n) for n in range(1, TOP_K + 1)}
    copies = [
        CopyTimes(1000, True, exactly(900), exactly(600)),
        CopyTimes(10**6, True, exactly(510_000), exactly(500_000)),
        CopyTimes(10**6, False, exactly(10**6), exactly(10**6)),
    ]
    decode = {"all": exactly(N_LAYERS * 100_000), "0": exactly(N_LAYERS * 140_000)}
    beside = {n: exactly(22_000 + 700 * n) for n in range(5)}
    return Measured(cpu, hits, copies, (exactly(100.0), exactly(100.0)), decode, beside=beside)


def test_all_costs():
    found = measured()
    assert found.best_threads == 4
    assert costs_of(found, GEOMETRY, 4).values == {
        "cpu_miss_ns": pytest.approx(10_000),
        "gpu_hit_ns": pytest.approx(3_000),
        "other_layer_ns": pytest.approx(100_000 - 4 * 3_000),
        "other_token_ns": 0,
        "cpu_event_ns": pytest.approx(140_000 - 88_000 - 4 * 10_000),
        "copy_bandwidth_bytes_per_s": pytest.approx(2e9),
        "copy_latency_ns": pytest.approx(100 - 100 / 2e9 * 1e9),
        "copy_event_ns": pytest.approx(700),
    }


def test_the_costs_give_back_the_decode_times():
    """The formula of pyanalysis/cost.py with hits only, and with misses only."""
    v = costs_of(measured(), GEOMETRY, 4).values
    assert N_LAYERS * (v["other_layer_ns"] + TOP_K * v["gpu_hit_ns"]) == pytest.approx(N_LAYERS * 100_000)
    assert N_LAYERS * (v["other_layer_ns"] + v["cpu_event_ns"] + TOP_K * v["cpu_miss_ns"]) == pytest.approx(1_400_000)


def test_a_model_that_does_not_fit_the_gpu():
    """other_layer_ns is 140 us less the CPU's own 2 + 4 * 10 us."""
    found = measured()
    del found.decode["all"]
    found.missing["decode at capacity all"] = "no room"
    costs = costs_of(found, GEOMETRY, 4)
    assert costs.values["other_layer_ns"] == pytest.approx(140_000 - 42_000)
    assert costs.values["cpu_event_ns"] == pytest.approx(2_000)
    assert "decode at capacity all: not measured: no room." in costs.sources


def test_without_a_gpu_only_the_miss_is_known():
    found = Measured({2: {1: exactly(7), 2: exactly(12)}}, missing={"hits": "there is no GPU"})
    costs = costs_of(found, GEOMETRY, 2)
    assert {name for name, value in costs.values.items() if value is not None} == {"cpu_miss_ns"}
    assert costs.values["cpu_miss_ns"] == pytest.approx(5)
    assert "hits: not measured: there is no GPU." in costs.sources


def test_pageable_copies_are_no_cost():
    found = measured()
    found.copies = [copy for copy in found.copies if not copy.pinned]
    assert costs_of(found, GEOMETRY, 4).values["copy_bandwidth_bytes_per_s"] is None


def test_what_would_be_negative_is_said():
    """The line through (1, 10) and (2, 30) begins at -10; through the origin it is (10 + 60) / 5 = 14 a miss."""
    found = measured()
    found.cpu = {4: {1: exactly(10), 2: exactly(30)}}
    found.decode["all"] = exactly(N_LAYERS * 1_000)
    costs = costs_of(found, GEOMETRY, 4)
    assert costs.values["cpu_miss_ns"] == pytest.approx(14)
    assert "cpu_miss_ns: the line is drawn through the origin: -10 ns + n * 20 ns is no cost." in costs.sources
    assert costs.values["other_layer_ns"] == 0
    assert any(s.startswith("other_layer_ns: ") and "0 stands for it" in s for s in costs.sources)


def test_spread_and_line():
    assert Spread.of([4, 1, 3, 2, 5]) == Spread(3, 2, 4, 5)
    assert Spread.of([7]) == Spread(7, 7, 7, 1)
    line = Line.through([(1, 2), (2, 2), (3, 5)])  # mean (2, 3), slope (1 * 1 + 1 * 2) / 2
    assert (line.slope, line.fixed) == (pytest.approx(1.5), pytest.approx(0))
    assert Line.through([(4, 20)]) == Line(0, 5)


@pytest.mark.parametrize(("n", "expected"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (16, [1, 2, 4, 8, 16])])
def test_thread_counts(n, expected):
    assert thread_counts(n) == expected


def test_layers_are_sampled_by_kind():
    """Every second layer has larger experts: any number of layers has both kinds in equal shares."""
    layers = tuple(layer(i, 60 if i % 2 else 80) for i in range(12))
    geometry = Geometry(Path("model.gguf"), "test", 2, layers)
    assert geometry.mean_expert_bytes == (100 + 120) / 2
    for n in (2, 4, 6, 12):
        found = geometry.sample(n * 220)
        assert len(found) == n
        assert sum(one.expert_bytes == 120 for one in found) == n / 2
    assert len(geometry.sample(1)) == 1
    assert len(geometry.sample(10**9)) == 12
