"""`--scheduler`: a local Dask cluster of two processes gives the results of this process."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import pytest

from ggml_moecache.errors import BackendError, ConfigError, MissingDependencyError
from pyanalysis import cli, costs, sweep, traces
from pyanalysis.simulation.cluster import sweep_on_cluster

# Dask's own workers warn about what they do not find on a machine (a dashboard, memory limits).
pytestmark = pytest.mark.filterwarnings("ignore::Warning:distributed")
POLICIES = ["lru", "cumulative-lfu", "belady", "random:seed=3"]
CAPACITIES = [0, 3, "50%", "all"]


@pytest.fixture(scope="module")
def address():
    distributed = pytest.importorskip("distributed", reason="the extra 'distributed' is not installed")
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)
    yield cluster.scheduler_address
    cluster.close()


@pytest.fixture
def trace(tmp_path):
    generator = np.random.default_rng(4)
    ids = np.stack([np.stack([generator.permutation(16)[:3] for _ in range(2)]) for _ in range(300)])
    np.savez(tmp_path / "t.npz", ids=ids, n_experts=16)
    return traces.read_trace(tmp_path / "t.npz")


def test_same_results_in_the_same_order(address, trace):
    options = {"cost": costs.load("h200"), "per_layer": True, "timing": "clocked", "seed": 7}
    done = []
    far = sweep_on_cluster(
        address, [trace, trace], POLICIES, CAPACITIES, progress=lambda *one: done.append(one), **options
    )
    near = sweep([trace, trace], POLICIES, CAPACITIES, **options)
    assert len(far) == 2 * 4 * 4
    assert [result.row() for result in far] == [result.row() for result in near]
    assert done[-1] == (32, 32)


def test_command_line(address, trace, monkeypatch, capsys):
    arguments = ["moecache", "simulate", str(trace.path), "--policy", "lru,belady", "--capacity", "2,4", "-o", "jsonl"]
    printed = []
    for more in ([], ["--scheduler", address]):
        monkeypatch.setattr(sys, "argv", [*arguments, *more])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 0
        printed.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    assert len(printed[0]) == 4
    assert printed[0] == printed[1]


def test_what_a_sweep_refuses_is_refused_by_name(address, trace):
    with pytest.raises(ConfigError, match="there is no policy 'mru'"):
        sweep_on_cluster(address, [trace], ["lru", "mru"], [1])


def _dies(*_):
    os._exit(1)


def test_workers_that_die_are_one_message(trace, monkeypatch):
    distributed = pytest.importorskip("distributed", reason="the extra 'distributed' is not installed")
    dask = pytest.importorskip("dask", reason="the extra 'distributed' is not installed")
    monkeypatch.setattr("pyanalysis.simulation.cluster._task", _dies)
    made = []
    make = distributed.Client.__init__
    monkeypatch.setattr(distributed.Client, "__init__", lambda self, *a, **k: made.append(self) or make(self, *a, **k))
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        pytest.raises(BackendError, match=r"the Dask cluster at 'tcp://.*' failed: KilledWorker: "),
    ):
        sweep_on_cluster(cluster.scheduler_address, [trace], ["lru"], [1])
    assert [client.status for client in made] == ["closed"]


def test_no_scheduler_there(trace, monkeypatch):
    monkeypatch.setattr("pyanalysis.simulation.cluster._CONNECT_S", 1)
    with pytest.raises(BackendError, match=r"no Dask scheduler answers at 'tcp://127\.0\.0\.1:9'"):
        sweep_on_cluster("tcp://127.0.0.1:9", [trace], ["lru"], [1])


def test_without_the_extra(trace, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(
        MissingDependencyError, match=r"needs the extra 'distributed': pip install 'ggml-moecache\[distributed\]'"
    ):
        sweep_on_cluster("tcp://127.0.0.1:9", [trace], ["lru"], [1])


def test_scheduler_without_workers(trace):
    distributed = pytest.importorskip("distributed", reason="the extra 'distributed' is not installed")
    with (
        distributed.LocalCluster(n_workers=0, processes=False, dashboard_address=None) as cluster,
        pytest.raises(BackendError, match="has no workers"),
    ):
        sweep_on_cluster(cluster.scheduler_address, [trace], ["lru"], [1])
