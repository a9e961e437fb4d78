"""moecache study oracle-gap: what the gap to the optimum consists of, and who picks its victims (arXiv 2608.07911)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ggml_moecache import _native
from pyanalysis.decide.replays import Replayer
from pyanalysis.report.plots import lines
from pyanalysis.simulation import EventStream, simulate
from pyanalysis.studies.findings import Findings
from pyanalysis.studies.replays import token_of_event
from pyanalysis.studies.routing import Routing
from pyanalysis.studies.splits import splits_of
from pyanalysis.studies.strategy import ranking
from pyanalysis.studies.strategy.base import Context, Plan
from pyanalysis.studies.strategy.replayed import replay_plan_at_once

if TYPE_CHECKING:
    from pyanalysis.studies.registry import Request
    from pyanalysis.studies.splits import Split
    from pyanalysis.traces import Trace

    Array = np.ndarray[Any, np.dtype[Any]]

POLICIES = ("random", "lru", "lfru:weight=64", "cumulative-lfu", _native.default_policy)


def run(request: Request) -> Findings:
    """Policies, both optima and a causal next-use predictor as the rule of eviction, on every trace."""
    findings = Findings("moecache study oracle-gap")
    findings.say(
        "Hit rates of held-out decoded tokens, event by event, copies there at the next token. 'optimum' may leave a "
        "newcomer out, 'forced' admits every miss and evicts the farthest next use. 'furthest use': share of the gap "
        "from the policy to the optimum that 'forced' closes, which is what knowing the furthest next use alone gives. "
        "next-use is a causal predictor (gradient-boosted trees) as rule of eviction; 'recovered': share of the gap "
        "from LRU to the optimum that it closes. 'victims': evictions whose victim the optimum could have chosen, over "
        "the whole trace."
    )
    gap_rows: list[list[Any]] = []
    for name, trace in request.traces:
        routing = Routing.of(trace, name)
        for split in splits_of(routing):
            request.progress(f"oracle-gap: {split.name}")
            gap_rows += _rows(trace, routing, split, request)
    for split_name in dict.fromkeys(row[0] for row in gap_rows):
        own = [row for row in gap_rows if row[0] == split_name]
        curves: dict[str, list[tuple[float, float]]] = {}
        for _, percent, policy, rate, forced, best, *_ in own:
            curves.setdefault(policy, []).append((percent, 100 * rate))
            if policy == "lru":
                curves.setdefault("belady-forced", []).append((percent, 100 * forced))
                curves.setdefault("belady", []).append((percent, 100 * best))
        findings.draw(lines(curves, f"slots (% of the experts), {split_name}", "hit rate (%)"))
    header = [
        "held out",
        "capacity %",
        "policy",
        "hit rate",
        "forced",
        "optimum",
        "furthest use",
        "recovered",
        "victims",
    ]
    findings.table("gap", header, gap_rows)
    return findings


def _rows(trace: Trace, routing: Routing, split: Split, request: Request) -> list[list[Any]]:
    stream = EventStream.of(trace, expert_bytes=1, replace_bytes=True)
    replayer = Replayer(stream, per_layer=request.per_layer)
    token = token_of_event(stream, trace, routing)
    held_out = np.isin(token, split.test)
    decoded = np.flatnonzero(token >= 0)
    event_of = np.full(routing.row.shape, -1, dtype=np.int64)
    event_of[token[decoded], stream.native.column()[decoded]] = decoded
    context = Context(routing, stream, event_of, split.fit_on, split.fit, (), request.seed)
    plan = Plan("scores", victim_agreement=True, scores=ranking.next_use(context))
    offsets = stream.native.offsets().astype(np.int64)
    per_access = np.repeat(held_out, np.diff(offsets))
    rows: list[list[Any]] = []
    for percent in request.percents:
        rates, victims = {}, {}
        for policy in (*POLICIES, "belady-forced", "belady"):
            result = simulate(
                stream, policy, f"{percent:g}%", per_layer=request.per_layer, seed=request.seed, events=True
            )
            assert result.events is not None  # noqa: S101 - it was asked for
            rates[policy] = float(result.events.hit[per_access].mean())
            victims[policy] = result.victim_agreement
            slots = result.slots
        found = replay_plan_at_once(replayer, plan, slots)
        rates["next-use"] = float(found["hit"][per_access].mean())
        victims["next-use"] = found["agreed"] / found["demand_victims"] if found["demand_victims"] else None
        forced, best = rates["belady-forced"], rates["belady"]
        for policy in (*POLICIES, "next-use"):
            rate = rates[policy]
            recovered = _share(rate - rates["lru"], best - rates["lru"]) if policy == "next-use" else None
            shares = (_share(forced - rate, best - rate), recovered)
            rows.append([split.name, percent, policy, rate, forced, best, *shares, victims[policy]])
    return rows


def _share(part: float, of: float) -> float | None:
    return part / of if of > 0 else None
