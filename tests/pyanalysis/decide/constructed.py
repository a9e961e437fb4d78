"""Constructed traces of one layer, four experts and top-1, on which it can be worked out by hand who wins.

The costs: a token takes 100 ns, a miss 100 ns on top, a hit 1 ns: 200 and 101 ns.
"""

from __future__ import annotations

import numpy as np

from pyanalysis.cost import CostModel
from pyanalysis.decide.decision import decision_of
from pyanalysis.decide.evidence import Options, gather
from pyanalysis.traces import Trace
from tests.pyanalysis.simulation.small import small_trace


def cost(**changes) -> CostModel:
    values = {
        "name": "made",
        "description": "round numbers",
        "sources": ("by hand",),
        "expert_bytes": 1000,
        "cpu_miss_ns": 100,
        "gpu_hit_ns": 1,
        "other_layer_ns": 100,
        "copy_latency_ns": 0,
        "copy_bandwidth_bytes_per_s": 1e14,
    }
    return CostModel(**(values | changes))


def static_wins() -> Trace:
    """40 requests that use experts 0 1 1 0 0 1 1 0.

    With one slot request-lfu hits nothing: each expert is admitted at its second use in a row and not used again until
    the other one has overtaken it; at the beginning of a request the counts are 0 and the first newcomer wins. Any set
    of one of them hits every second token.
    """
    return small_trace(np.tile([0, 1, 1, 0, 0, 1, 1, 0], 40)[:, None, None], 4, request=np.repeat(np.arange(40), 8))


def adaptive_wins() -> Trace:
    """80 requests of 50 tokens, request r uses expert r mod 4 only: one miss a request for request-lfu and lru."""
    request = np.repeat(np.arange(80), 50)
    return small_trace((request % 4)[:, None, None], 4, request=request)


def all_equal() -> Trace:
    """40 requests that use expert 0 only: whatever has a slot hits everything but the first token."""
    return small_trace(np.zeros((320, 1, 1), int), 4, request=np.repeat(np.arange(40), 8))


def decided(traces: dict[str, Trace], costs: CostModel, adaptive=("request-lfu",), percents=(0, 25, 50)):
    options = Options((costs,), adaptive, percents, workers=1)
    evidences = [gather(trace, options, lambda *_: None, name=name) for name, trace in traces.items()]
    return decision_of(evidences, options, seed=0, progress=lambda *_: None)
