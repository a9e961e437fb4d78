"""Per-access replay against libCacheSim on the same requests: every hit counted must agree."""

from __future__ import annotations

import libcachesim
import numpy as np
import pytest

from pyanalysis import simulate
from pyanalysis.simulation import EventStream
from tests.pyanalysis.simulation.small import small_trace

N_EXPERTS, N_LAYERS, TOP_K, N_TOKENS = 16, 3, 4, 1500
# Ours and theirs; libCacheSim's Belady admits every miss, and of one request at a time that is belady-forced.
PAIRS = {"lru": libcachesim.LRU, "lfu": libcachesim.LFU, "belady-forced": libcachesim.Belady}


@pytest.fixture(scope="module")
def trace():
    """Skewed routing whose favourites drift."""
    draw = np.random.default_rng(7)
    ids = np.empty((N_TOKENS, N_LAYERS, TOP_K), dtype=np.int32)
    for token in range(N_TOKENS):
        for layer in range(N_LAYERS):
            weight = 1 / (1 + (np.arange(N_EXPERTS) * 5 + layer + token // 200) % N_EXPERTS)
            ids[token, layer] = draw.choice(N_EXPERTS, TOP_K, replace=False, p=weight / weight.sum())
    return small_trace(ids, N_EXPERTS)


@pytest.fixture(scope="module")
def requests(trace, tmp_path_factory):
    """The same requests in libCacheSim's oracleGeneral format: time, object, size, next access (-1: none)."""
    items = (trace.layer[:, None] * N_EXPERTS + trace.ids).ravel()
    following = {}
    next_access = np.full(len(items), -1, dtype=np.int64)
    for index in range(len(items) - 1, -1, -1):
        next_access[index] = following.get(items[index], -1)
        following[items[index]] = index + 1
    kind = np.dtype([("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")])
    records = np.zeros(len(items), dtype=kind)
    records["time"] = np.arange(len(items))
    records["object"] = items + 1
    records["size"] = 1
    records["next"] = next_access
    path = tmp_path_factory.mktemp("libcachesim") / "requests.oracleGeneral"
    records.tofile(path)
    return str(path)


@pytest.mark.parametrize("capacity", [1, 5, 12, 24, 40])
@pytest.mark.parametrize("policy", PAIRS)
def test_hits_agree(trace, requests, policy, capacity):
    ours = simulate(EventStream.of(trace, mode="per-access"), policy, capacity)
    reader = libcachesim.TraceReader(
        trace=requests,
        trace_type=libcachesim.TraceType.ORACLE_GENERAL_TRACE,
        reader_init_params=libcachesim.ReaderInitParam(ignore_obj_size=True),
    )
    miss_ratio, _ = PAIRS[policy](cache_size=capacity).process_trace(reader)
    assert ours.mode == "per-access"
    assert ours.accesses == N_TOKENS * N_LAYERS * TOP_K
    assert ours.accesses - ours.hits == round(miss_ratio * ours.accesses)
