"""moecache study strategies: predictive strategies replayed with a clock, against the decision report's winner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ggml_moecache import _native
from ggml_moecache.errors import ConfigError
from pyanalysis import threads
from pyanalysis.decide import parts
from pyanalysis.decide.replays import Replayer
from pyanalysis.simulation import EventStream
from pyanalysis.simulation.capacity import slots_of
from pyanalysis.studies import verdicts
from pyanalysis.studies.findings import Findings
from pyanalysis.studies.replays import token_of_event
from pyanalysis.studies.routing import Routing
from pyanalysis.studies.splits import all_splits
from pyanalysis.studies.strategy.base import Context, NotApplicableError
from pyanalysis.studies.strategy.replayed import Outcome, replay_plan, replay_policy
from pyanalysis.studies.strategy.selection import halves, part_of
from pyanalysis.studies.strategy.table import chosen
from pyanalysis.studies.verdicts import Cell

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from pyanalysis.cost import CostModel
    from pyanalysis.decide.parts import Part
    from pyanalysis.studies.registry import Request
    from pyanalysis.studies.splits import Split
    from pyanalysis.studies.strategy.base import Plan, Strategy
    from pyanalysis.traces import Trace

    Array = np.ndarray[Any, np.dtype[Any]]
    Least = dict[tuple[str, float], float]  # least confidence by cost model and capacity in per cent

WINNER = _native.default_policy  # of the decision report
POLICIES = (WINNER, "lru", "cumulative-lfu", "interval-refresh")
BOUNDS = ("belady", "belady:horizon=8", "belady-forced", "hindsight-static")


@dataclass(eq=False)
class _Bench:
    """One trace, ready to be replayed with every cost model."""

    name: str
    trace: Trace
    routing: Routing
    replayers: dict[str, Replayer]
    event_of: Array
    prompts: tuple[tuple[int, Array], ...]

    def slots(self, percent: float, request: Request) -> tuple[int, ...]:
        return slots_of(self.stream, f"{percent:g}%", per_layer=request.per_layer)

    @property
    def stream(self) -> EventStream:
        return next(iter(self.replayers.values())).stream

    def part(self, split: Split) -> Part:
        """The held-out part."""
        if split.held_out == "workload":
            return parts.whole(self.trace, self.stream)
        return next(one for one in parts.splits_of(self.trace, self.stream) if one.name == split.held_out).held_out

    def context(self, split: Split, fit: Array, request: Request) -> Context:
        """For `split`, fitted on the tokens `fit`."""
        return Context(self.routing, self.stream, self.event_of, split.fit_on, fit, self.prompts, request.seed)


def run(request: Request) -> Findings:
    """Every strategy on every trace, split, cost model and capacity."""
    strategies = chosen(request.strategies)
    benches = [_bench(name, trace, request) for name, trace in request.traces]
    splits, notes = all_splits([bench.routing for bench in benches])
    cells: list[Cell] = []
    chosen_on: dict[tuple[str, str], Least] = {}  # by trace and strategy; the last of a trace's splits is its requests
    with threads.pool() as pool:
        for split in splits:
            bench = next(one for one in benches if one.routing is split.test_on)
            request.progress(f"strategies: {split.name}: policies")
            cells += _policies(bench, split, request, pool)
            context = bench.context(split, split.fit, request)
            earlier, later = halves(split)
            inner = bench.context(split, earlier, request)
            judged = part_of(bench.event_of, later) if split.held_out != "workload" else None
            for strategy in strategies:
                request.progress(f"strategies: {split.name}: {strategy.name}")
                try:
                    if judged is not None:
                        least = _least(strategy, inner, bench, judged, request=request, pool=pool)
                        chosen_on[split.fit_on.name, strategy.name] = least
                    elif (split.fit_on.name, strategy.name) in chosen_on:
                        least = chosen_on[split.fit_on.name, strategy.name]
                    else:
                        notes.append(f"{strategy.name} on {split.name}: not replayed, it was not on the other trace")
                        continue
                    cells += _strategy(strategy, context, bench, split, least=least, request=request, pool=pool)
                except NotApplicableError as reason:
                    notes.append(f"{strategy.name} on {split.name}: not replayed, {reason}")
    return _report(request, strategies, cells, list(dict.fromkeys(notes)))


def _bench(name: str, trace: Trace, request: Request) -> _Bench:
    routing = Routing.of(trace, name)
    replayers = {}
    for cost in request.costs:
        if cost.expert_bytes is None:
            raise ConfigError(f"--cost {cost.name}: expert_bytes is needed: copies are of the cost model's experts")
        stream = EventStream.of(trace, expert_bytes=cost.expert_bytes, replace_bytes=True)
        replayers[cost.name] = Replayer(stream, per_layer=request.per_layer)
    stream = next(iter(replayers.values())).stream
    token = token_of_event(stream, trace, routing)
    decoded = np.flatnonzero(token >= 0)
    event_of = np.full(routing.row.shape, -1, dtype=np.int64)
    event_of[token[decoded], stream.native.column()[decoded]] = decoded
    if (event_of < 0).any() or not (np.diff(event_of, axis=1) == 1).all():
        raise ConfigError(
            f"{trace.path}: strategies replay one sequence at a time with every layer recorded; in this trace decoded "
            "tokens lack layers or share their steps with other sequences"
        )
    return _Bench(name, trace, routing, replayers, event_of, _prompts(trace, routing))


def _prompts(trace: Trace, routing: Routing) -> tuple[tuple[int, Array], ...]:
    """(number of the request, uses int64[L, E] of its prompt) of each request that has both prompt and decode."""
    column, _ = trace.columns
    prompt = np.flatnonzero(trace.phase == 0)
    first = np.flatnonzero(routing.begins)
    ids_of_request = trace.request[routing.row[first, 0]]
    found = []
    for number, request in enumerate(ids_of_request.tolist()):
        rows = prompt[trace.request[prompt] == request]
        if len(rows) == 0:
            continue
        uses = np.zeros((len(routing.layers), routing.most_experts), dtype=np.int64)
        ids = trace.ids[rows]
        there = ids >= 0
        np.add.at(uses, (np.broadcast_to(column[rows, None], ids.shape)[there], ids[there]), 1)
        found.append((number, uses))
    return tuple(found)


def _policies(bench: _Bench, split: Split, request: Request, pool: ThreadPoolExecutor) -> list[Cell]:
    jobs = [
        (policy, cost, percent)
        for policy in (*POLICIES, *BOUNDS)
        for cost in request.costs
        for percent in request.percents
    ]

    def work(job: tuple[str, CostModel, float]) -> Outcome:
        policy, cost, percent = job
        return replay_policy(bench.replayers[cost.name], policy, bench.slots(percent, request), cost)

    part = bench.part(split)
    return [
        _cell(bench, split, part, job, outcome, kind="bound" if job[0] in BOUNDS else "policy", least=0.0)
        for job, outcome in zip(jobs, pool.map(work, jobs), strict=True)
    ]


def _made(strategy: Strategy, context: Context, bench: _Bench, request: Request) -> dict[float, Plan]:
    """The plan for each capacity."""
    made: dict[float, Plan] = {}
    for percent in request.percents:
        known = strategy.by_capacity or not made
        made[percent] = strategy.make(context, bench.slots(percent, request)) if known else next(iter(made.values()))
    return made


def _least(
    strategy: Strategy, context: Context, bench: _Bench, judged: Part, *, request: Request, pool: ThreadPoolExecutor
) -> Least:
    """By cost model and capacity the least confidence with the least time on `judged`, predicting included."""
    if all(len(strategy.tried(cost)) == 1 for cost in request.costs):
        return {(cost.name, percent): strategy.tried(cost)[0] for cost in request.costs for percent in request.percents}
    made = _made(strategy, context, bench, request)
    jobs = [
        (cost, percent, least)
        for cost in request.costs
        for percent in request.percents
        for least in strategy.tried(cost)
    ]

    def work(job: tuple[CostModel, float, float]) -> float:
        cost, percent, least = job
        replayer, plan = bench.replayers[cost.name], made[percent].with_confidence(least)
        outcome = replay_plan(replayer, plan, bench.slots(percent, request), cost)
        spent = float(replayer.sums(outcome.replayed, judged).time_ns(cost).sum())
        return spent + _predicting(plan, cost) * float(judged.tokens.sum())

    times: dict[tuple[str, float], dict[float, float]] = {}
    for (cost, percent, least), spent in zip(jobs, pool.map(work, jobs), strict=True):
        times.setdefault((cost.name, percent), {})[least] = spent
    return {key: min(by_least, key=by_least.__getitem__) for key, by_least in times.items()}


def _strategy(
    strategy: Strategy,
    context: Context,
    bench: _Bench,
    split: Split,
    *,
    least: Least,
    request: Request,
    pool: ThreadPoolExecutor,
) -> list[Cell]:
    jobs = [(cost, percent) for cost in request.costs for percent in request.percents]
    plans = _made(strategy, context, bench, request)
    plan = {(c.name, p): plans[p].with_confidence(least[c.name, p]) for c, p in jobs}
    held_out = bench.part(split)

    def work(job: tuple[CostModel, float]) -> Outcome:
        cost, percent = job
        slots = bench.slots(percent, request)
        return replay_plan(bench.replayers[cost.name], plan[cost.name, percent], slots, cost)

    return [
        _cell(
            bench,
            split,
            held_out,
            (strategy.name, *job),
            outcome,
            kind="strategy",
            least=least[job[0].name, job[1]],
            spent=_predicting(plan[job[0].name, job[1]], job[0]),
        )
        for job, outcome in zip(jobs, pool.map(work, jobs), strict=True)
    ]


def _predicting(plan: Plan, cost: CostModel) -> float:
    return predict_ns(plan.predict_bytes, cost) if plan.predicts(plan.least_confidence) else 0.0


def predict_ns(n_bytes: int, cost: CostModel) -> float:
    """Time to predict for one token: what it reads, at the rate at which the cost model's CPU reads a missed expert."""
    return n_bytes * cost.cpu_miss_ns / (cost.expert_bytes or 1)


def _cell(
    bench: _Bench,
    split: Split,
    part: Part,
    job: tuple[str, CostModel, float],
    outcome: Outcome,
    *,
    kind: str,
    least: float,
    spent: float = 0.0,
) -> Cell:
    """`job`: strategy, cost model and capacity in per cent."""
    strategy, cost, percent = job
    replayer = bench.replayers[cost.name]
    sums = replayer.sums(outcome.replayed, part)
    counts = outcome.counts(part.events)
    return Cell(
        trace=bench.name,
        split=split.name,
        held_out=split.held_out,
        cost=cost.name,
        percent=percent,
        strategy=strategy,
        kind=kind,
        least_confidence=least,
        time_ns=sums.time_ns(cost),
        hits=sums.hits,
        accesses=sums.accesses,
        tokens=sums.tokens,
        predict_ns=spent,
        dearer_copy_ns=max(0.0, cost.cpu_miss_ns - cost.copy_event_ns),
        copy_bytes=counts["copies"] * (cost.expert_bytes or 0),
        enough_units=part.has_intervals,
        **counts,
    )


def _report(request: Request, strategies: list[Strategy], cells: list[Cell], notes: list[str]) -> Findings:
    findings = Findings("moecache study strategies")
    findings.say(
        f"Clocked replays over whole traces, prompts included; the decoded tokens of the held-out part count. Compared "
        f"with {WINNER}, the winner of the decision report. Copies are of the cost model's experts, and each takes its "
        "copy_event_ns from the event in which it is handed over. Predictors are fitted on the other part. The least "
        "confidence of a prefetch (0: all k + 3 candidates, as published; off: none) is the fastest of a few on the "
        "later half of that part, with a predictor of its earlier half; for a held-out workload it is that of the "
        "other trace's last split. A replay does not know the time that predicting takes; it is added as what a "
        "prediction reads of its tables, at the rate at which the cost model's CPU reads a missed expert, one after "
        "the other with everything else."
    )
    findings.notes(notes)
    verdicts.add(findings, cells, WINNER, [one.name for one in strategies if not one.bound], seed=request.seed)
    return findings
