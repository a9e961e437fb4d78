"""`moecache bench simulate`: that the arms do the same work. What they take is measured, not tested."""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import pytest

from ggml_moecache.errors import BackendError
from pyanalysis import bench_growth, bench_simulate, cli, traces

# Two tokens, two layers, top-2 of four experts.
IDS = np.array([[[3, 1], [0, 2]], [[1, 0], [2, 3]]])


@pytest.fixture
def path(tmp_path):
    np.savez(tmp_path / "t.npz", ids=np.tile(IDS, (40, 1, 1)), n_experts=4)
    return tmp_path / "t.npz"


def test_accesses_in_the_format_of_libcachesim(tmp_path):
    """24 bytes each: time, object, size, next; the object is layer * 4 + expert, in the order of the trace."""
    np.savez(tmp_path / "t.npz", ids=IDS, n_experts=4)
    trace = traces.read_trace(tmp_path / "t.npz")
    assert bench_simulate._write_oracle(trace, tmp_path / "stream") == 8
    data = (tmp_path / "stream").read_bytes()
    assert len(data) == 8 * 24
    assert [int.from_bytes(data[24 * i + 4 : 24 * i + 12], "little") for i in range(8)] == [3, 1, 4, 6, 1, 0, 6, 7]
    assert [int.from_bytes(data[24 * i + 12 : 24 * i + 16], "little") for i in range(8)] == [1] * 8


def test_arms_that_did_other_work_are_refused():
    same = {("libcachesim", "LRU"): (8, 3), ("moecache per access", "lru"): (8, 3)}
    same |= {("libcachesim", "LFU"): (8, 2), ("moecache per access", "lfu"): (8, 2)}
    bench_simulate._must_agree(same)
    with pytest.raises(BackendError, match="per-access lfu has 3 hits in 8 accesses, libcachesim 2 in 8"):
        bench_simulate._must_agree({**same, ("moecache per access", "lfu"): (8, 3)})


def test_arms_agree(path):
    """On a longer stream of made routing too, where the caches evict all the time."""
    pytest.importorskip("libcachesim", reason="the extra 'bench' is not installed")
    for trace in (traces.read_trace(path), bench_growth.made_trace(300, 3, 32)):
        arms = bench_simulate.throughput(trace, ["25%", "5"], 1)
        assert sorted({arm.experts for arm in arms}) == sorted(
            {5, len(trace.columns[1]) * trace.model["n_experts"] // 4}
        )
        for experts in {arm.experts for arm in arms}:
            hits = {(arm.program, arm.policy): arm.hits for arm in arms if arm.experts == experts}
            assert hits["libcachesim", "LRU"] == hits["moecache per access", "lru"]
            assert hits["libcachesim", "LFU"] == hits["moecache per access", "lfu"]
        assert {arm.accesses for arm in arms} == {int((trace.ids >= 0).sum())}


def test_capacities(path):
    assert bench_simulate.capacities_of(traces.read_trace(path)) == [0, 1, 2, 3, 4]
    assert bench_simulate.capacities_of(bench_growth.made_trace(20, 1, 64)) == list(range(0, 65, 2))


def test_made_trace():
    trace = bench_growth.made_trace(500, 2, 32)
    assert trace.ids.shape == (1000, 8)
    assert all(len(set(ids)) == 8 for ids in trace.ids.tolist())
    counts = np.bincount(trace.ids[trace.layer == 0].ravel(), minlength=32)
    # The first of 1 / (rank + 1) among 32 has 1 / H(32) = 0.246 of the first of 8 draws: it is nearly always in.
    assert counts.max() > 0.8 * 500
    assert counts.min() > 0
    traces.check_trace(trace, lambda problem: pytest.fail(str(problem)))


def test_program(path, monkeypatch, capsys):
    pytest.importorskip("libcachesim", reason="the extra 'bench' is not installed")
    monkeypatch.setattr(bench_growth, "_TOKENS", 20)
    for more in ([], ["--json", "--growth", "--workers", "1", "--no-victim-agreement"]):
        monkeypatch.setattr(sys, "argv", ["moecache", "bench", "simulate", str(path), "--rounds", "1", *more])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 0
        out = capsys.readouterr().out
        if more:
            figures = json.loads(out)
            assert [arm["accesses"] for arm in figures["throughput"]] == [320] * 18
            assert figures["sweep"]["capacities"] == [0, 1, 2, 3, 4]
            assert figures["sweep"]["workers"] == 1
            assert figures["sweep"]["victim_agreement"] is False
            assert [point["varied"] for point in figures["growth"][::3]] == [
                "tokens",
                "layers",
                "experts",
                "capacities",
            ]
        else:
            assert re.search(
                r"^sweep     8 policies x 5 capacities x 320 accesses: \d.*, with victim agreement$", out, re.MULTILINE
            )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--rounds", "0"], "--rounds must be a whole number of at least 1, got 0"),
        (["--workers", "0"], "--workers must be a whole number of at least 1, got 0"),
    ],
)
def test_bad_arguments(path, monkeypatch, capsys, more, message):
    monkeypatch.setattr(sys, "argv", ["moecache", "bench", "simulate", str(path), *more])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"moecache: error: {message}\n"
