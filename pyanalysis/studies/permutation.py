"""moecache study permutation: how much of the hit rates is order in time (arXiv 2608.07911)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ggml_moecache import _native
from pyanalysis.report.plots import lines
from pyanalysis.simulation import EventStream, sweep
from pyanalysis.studies.findings import Findings
from pyanalysis.studies.routing import Routing

if TYPE_CHECKING:
    from pyanalysis.studies.registry import Request
    from pyanalysis.traces import Trace

    Array = np.ndarray[Any, np.dtype[Any]]

POLICIES = ("lru", "cumulative-lfu", _native.default_policy, "belady")


def run(request: Request) -> Findings:
    """Hit rates of each trace as it is and with its decoded tokens permuted."""
    findings = Findings("moecache study permutation")
    findings.say(
        "The same decoded tokens in three orders: as recorded, permuted within each request, permuted over the whole "
        "trace. Popularity stays, locality goes. Prompts stay where they are. Event by event, ideal timing, decoded "
        "tokens. 'gap': misses of the policy that the optimum avoids, as a share of the policy's misses; 'of optimum': "
        "hits that are missing to the optimum, as a share of the optimum's hits."
    )
    rows: list[list[Any]] = []
    capacities = [f"{percent:g}%" for percent in request.percents]
    for name, trace in request.traces:
        routing = Routing.of(trace, name)
        for order in ("recorded", "within requests", "whole trace"):
            request.progress(f"permutation: {name}: {order}")
            moved = permuted(trace, routing, order, np.random.default_rng(request.seed))
            found = sweep(
                EventStream.of(moved), list(POLICIES), capacities, per_layer=request.per_layer, victim_agreement=False
            )
            rates = {(one.policy, one.capacity): one.decode_hit_rate or 0.0 for one in found}
            for percent, capacity in zip(request.percents, capacities, strict=True):
                best = rates["belady", capacity]
                for policy in POLICIES[:-1]:
                    rate = rates[policy, capacity]
                    rows.append([name, percent, policy, order, rate, best, *gaps(rate, best)])
    for name, _ in request.traces:
        curves: dict[str, list[tuple[float, float]]] = {}
        for trace_name, percent, policy, order, rate, best, *_ in rows:
            if trace_name == name and policy == "lru":
                curves.setdefault(f"lru, {order}", []).append((percent, 100 * rate))
                curves.setdefault(f"optimum, {order}", []).append((percent, 100 * best))
        findings.draw(lines(curves, f"slots of {name} (% of the experts)", "hit rate (%)"))
    findings.table(
        "permutation", ["trace", "capacity %", "policy", "order", "hit rate", "optimum", "gap", "of optimum"], rows
    )
    return findings


def gaps(rate: float, best: float) -> tuple[float | None, float | None]:
    """(share of the misses that the optimum avoids, share of the optimum's hits that are missing)."""
    return (best - rate) / (1 - rate) if rate < 1 else None, (best - rate) / best if best > 0 else None


def permuted(trace: Trace, routing: Routing, order: str, generator: np.random.Generator) -> Trace:
    """`trace` with what its decoded tokens were routed to moved to other decoded tokens, in all layers alike."""
    if order == "recorded":
        return trace
    tokens = np.arange(routing.n_tokens)
    if order == "within requests":
        source = np.lexsort((generator.random(routing.n_tokens), routing.request))
    else:
        source = generator.permutation(tokens)
    ids = trace.ids.copy()
    there = (routing.row >= 0) & (routing.row[source] >= 0)
    ids[routing.row[there]] = trace.ids[routing.row[source][there]]
    return replace(trace, ids=ids, weights=None, top1=None)
