"""simulate() and sweep(): traces, policies and capacities in, results out."""

from __future__ import annotations

from concurrent.futures import as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ggml_moecache import _native
from ggml_moecache.errors import ConfigError
from pyanalysis.simulation.arguments import canonical, cost_of, policies_of, refuse_twice, stream_of, traces_of, whole
from pyanalysis.simulation.capacity import capacities_of, slots_of
from pyanalysis.simulation.result import EventLog, LayerResult, SimulationResult
from pyanalysis.threads import pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyanalysis.cost import CostModel
    from pyanalysis.simulation.arguments import CostLike, TraceLike
    from pyanalysis.simulation.result import Mode, Timing
    from pyanalysis.simulation.stream import EventStream

    Capacity = int | str | Sequence[int]


@dataclass(frozen=True)
class Replay:
    """How to replay; fields as the arguments of simulate()."""

    cost: CostModel | None = None
    per_layer: bool = False
    timing: Timing | None = None
    seed: int = 0
    victim_agreement: bool = True
    events: bool = False

    def timing_of(self, stream: EventStream) -> Timing:
        """The timing given; else clocked if there are costs and the stream can have a clock."""
        if self.timing is not None:
            return self.timing
        return "clocked" if self.cost is not None and stream.mode != "per-access" else "ideal"

    def options(self, stream: EventStream) -> _native.SimulationOptions:
        """The same for the simulator. Raises ConfigError for a combination that cannot be."""
        timing = self.timing_of(stream)
        if timing not in ("ideal", "clocked"):
            raise ConfigError(f"timing must be ideal or clocked. Got {timing!r} instead.")
        options = _native.SimulationOptions()
        options.clocked = timing == "clocked"
        options.victim_agreement = self.victim_agreement
        options.log = self.events
        if options.clocked:
            if self.cost is None:
                raise ConfigError("clocked timing needs a cost model")
            if any(n_bytes == 0 for *_, n_bytes in stream.columns):
                raise ConfigError(
                    f"{stream.trace}: clocked timing needs the bytes of an expert, which the trace does not tell: set "
                    "expert_bytes in the cost model, or ask for ideal timing"
                )
            if stream.mode == "per-access":
                raise ConfigError("per-access replay is a comparison of hit rates and has ideal timing only")
            c = self.cost
            options.costs = [
                *(c.cpu_miss_ns, c.cpu_event_ns, c.gpu_hit_ns, c.other_layer_ns, c.other_token_ns, c.copy_latency_ns),
                *(c.copy_bandwidth_bytes_per_s, c.copy_event_ns),
            ]
        return options


def simulate(
    trace: TraceLike,
    policy: str,
    capacity: Capacity,
    cost: CostLike | None = None,
    *,
    per_layer: bool = False,
    timing: Timing | None = None,
    mode: Mode = "event-atomic",
    batch_size: int = 512,
    seed: int = 0,
    victim_agreement: bool = True,
    events: bool = False,
) -> SimulationResult:
    """Replay a trace against one policy at one capacity.

    trace        or the path of one, or an EventStream made of one; then mode and batch_size are the stream's
    capacity     experts as a number, "all", a share of the experts ("5%": rounded to the nearest whole expert, at least
                 1), of each layer with per_layer, of all layers together without; or memory for all layers together
                 ("2GiB", "512MiB": as many whole experts as fit, with per_layer an equal part for each layer). A list
                 of numbers gives each layer (and family, in rising order) its own.
    cost         needed for timing "clocked" and for every time in the result; a cost model, the name of one that
                 ships ("h200") or the path of one
    timing       "ideal": a copy is complete at the next token of its layer; "clocked": when the cost model says so;
                 None: clocked with a cost model, ideal without and with mode "per-access"
    mode         "as-run": as the runtime does with the trace's ubatches, all tokens of one are one event per layer and
                 more than 32 pass the cache by; the log of a run with a cache replays exactly. "per-access": every
                 expert of an event is an event of its own. A comparison, not what a runtime can do
    batch_size   tokens per union event of prefill tokens whose ubatch the trace does not name
    seed         of policies that draw, unless the policy itself says seed=
    victim_agreement   compute this field of the result: each replay needs the next use of every access (4 bytes each,
                 once per stream), and policies that have one pass for all capacities are replayed for each
    events       log every decision in `events` of the result

    Raises ConfigError for an argument or combination that cannot be, TraceError for a file that is no trace.
    """
    cost = cost_of(cost)
    stream = stream_of(trace, cost, mode, batch_size)
    replay = Replay(cost, per_layer, timing, seed, victim_agreement, events)
    return simulate_capacities(stream, policy, [capacity], replay)[0]


def sweep(
    traces: TraceLike | Iterable[TraceLike],
    policies: str | Iterable[str],
    capacities: int | str | Iterable[Capacity],
    cost: CostLike | None = None,
    *,
    per_layer: bool = False,
    timing: Timing | None = None,
    mode: Mode = "event-atomic",
    batch_size: int = 512,
    seed: int = 0,
    victim_agreement: bool = True,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[SimulationResult]:
    """Every policy at every capacity over every trace, in this order of nesting: traces, policies, capacities.

    traces, policies, capacities   lists, or one of each; policies and capacities also as the strings that `moecache
              simulate` takes ("lru,belady", "0:33:4,all"). No policy twice.
    victim_agreement   False is several times faster for policies that have one pass for all capacities (lru,
              cumulative-lfu, decayed-lfu, windowed-lfu, lfru, request-lfu, belady, hindsight-static)
    workers   threads; default: as many as this process may use CPUs. The results do not depend on it.
    progress  called with (results finished, results in all) from the calling thread
    The rest as in simulate().
    """
    cost = cost_of(cost)
    names, capacities = policies_of(policies), capacities_of(capacities)
    refuse_twice(names, seed)
    n_threads = None if workers is None else whole("workers", workers, 1)
    replay = Replay(cost, per_layer, timing, seed, victim_agreement)
    jobs: list[tuple[EventStream, str, list[Capacity]]] = []
    for trace in traces_of(traces):
        stream = stream_of(trace, cost, mode, batch_size)
        options = replay.options(stream)
        for capacity in capacities:
            slots_of(stream, capacity, per_layer=per_layer)
        for policy in names:
            canonical(stream, policy, seed)
            if _native.one_pass(stream.native, per_layer, policy, options):
                jobs.append((stream, policy, list(capacities)))
            else:
                jobs.extend((stream, policy, [capacity]) for capacity in capacities)
    total = sum(len(part) for _, _, part in jobs)
    finished: dict[int, list[SimulationResult]] = {}
    with pool(n_threads) as executor:
        futures = {executor.submit(simulate_capacities, *job, replay): index for index, job in enumerate(jobs)}
        for future in as_completed(futures):
            finished[futures[future]] = future.result()
            if progress is not None:
                progress(sum(map(len, finished.values())), total)
    return [result for index in range(len(jobs)) for result in finished[index]]


def simulate_capacities(
    stream: EventStream, policy: str, capacities: Sequence[Capacity], replay: Replay
) -> list[SimulationResult]:
    """One policy at several capacities in the calling thread: the unit of work of a sweep. Raises ConfigError."""
    options = replay.options(stream)
    name = canonical(stream, policy, replay.seed)
    slots = [list(slots_of(stream, capacity, per_layer=replay.per_layer)) for capacity in capacities]
    try:
        counts = _native.simulate(stream.native, replay.per_layer, policy, replay.seed, slots, options)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return [
        _result(stream, replay, count, policy=name, capacity=_text(capacity), slots=one)
        for capacity, one, count in zip(capacities, slots, counts, strict=True)
    ]


def _text(capacity: Capacity) -> str:
    return str(capacity) if isinstance(capacity, (int, np.integer, str)) else ",".join(map(str, capacity))


def _result(
    stream: EventStream,
    replay: Replay,
    counts: _native.SimulationCounts,
    *,
    policy: str,
    capacity: str,
    slots: list[int],
) -> SimulationResult:
    bytes_known = all(n_bytes > 0 for *_, n_bytes in stream.columns)
    same = replay.per_layer and len(set(slots)) == 1
    agreement = counts.agreed / counts.evictions if replay.victim_agreement and counts.evictions else None
    time, miss_time = _times(stream, counts, replay.cost, clocked=replay.timing_of(stream) == "clocked")
    regime = stream.steps.over(slots, per_layer=replay.per_layer)
    layers = zip(stream.columns, counts.column_accesses, counts.column_hits, strict=True)
    return SimulationResult(
        trace=stream.trace,
        policy=policy,
        capacity=capacity,
        capacity_experts=slots[0] if same else sum(slots),
        per_layer=replay.per_layer,
        slots=tuple(slots),
        timing=replay.timing_of(stream),
        mode=stream.mode,
        cost=replay.cost.name if replay.cost is not None else None,
        n_tokens=stream.n_tokens,
        n_decode_tokens=stream.n_decode_tokens,
        n_tokens_passed_by=stream.n_tokens_passed_by,
        n_events=counts.n_events,
        accesses=counts.accesses,
        hits=counts.hits,
        step=stream.steps.unit,
        step_experts_over_slots=regime.mean if regime else None,
        steps_above_slots=regime.above if regime else None,
        decode_accesses=counts.decode_accesses,
        decode_hits=counts.decode_hits,
        admissions=counts.admissions,
        evictions=counts.evictions,
        copies=counts.admissions,
        copy_bytes=counts.copy_bytes if bytes_known else None,
        copies_late=counts.copies_late,
        cpu_fallbacks=counts.accesses - counts.hits,
        victim_agreement=agreement,
        time_per_token_ns=time,
        miss_time_per_token_ns=miss_time,
        layers=tuple(LayerResult(layer, family, n, hits) for (layer, family, _, _), n, hits in layers),
        events=_event_log(stream, counts) if replay.events else None,
    )


def _times(
    stream: EventStream, counts: _native.SimulationCounts, cost: CostModel | None, *, clocked: bool
) -> tuple[float | None, float | None]:
    """(time per decode token, the part of it that misses cost) in ns, by the formula of pyanalysis.cost."""
    if cost is None or stream.n_decode_tokens == 0 or stream.mode == "per-access":
        return None, None
    total = all_hits = 0.0
    for n, by_hits in enumerate(counts.decode_events):
        for hits, n_events in enumerate(by_hits):
            total += n_events * cost.event_ns(n, hits)
            all_hits += n_events * cost.event_ns(n, n)
    tokens = stream.n_decode_tokens
    total += counts.decode_admissions * cost.copy_event_ns if clocked else 0.0
    return (total + stream.n_decode_steps * cost.other_token_ns) / tokens, (total - all_hits) / tokens


def _event_log(stream: EventStream, counts: _native.SimulationCounts) -> EventLog:
    native, log = stream.native, counts.log()
    column = native.column().astype(np.int64)
    row = native.row()
    layer_of = np.array([layer for layer, *_ in stream.columns], dtype=np.int32)
    family_of = np.array([stream.families.index(family) for _, family, *_ in stream.columns], dtype=np.uint8)
    items = native.items().astype(np.int64)
    offsets = native.offsets().astype(np.int64)
    parts = {}
    for name in ("admitted", "evicted"):
        item = log[name].astype(np.int64)
        missing = item == np.iinfo(np.uint32).max
        at = np.searchsorted(stream.first_item, np.where(missing, 0, item), side="right") - 1
        parts[f"{name}_layer"] = np.where(missing, -1, layer_of[at]).astype(np.int32)
        parts[f"{name}_family"] = np.where(missing, -1, family_of[at].astype(np.int32)).astype(np.int32)
        parts[f"{name}_expert"] = np.where(missing, -1, item - stream.first_item[at]).astype(np.int32)
    unknown = np.full(len(log["admitted"]), np.nan)
    return EventLog(
        families=stream.families,
        row=row,
        layer=layer_of[column],
        family=family_of[column],
        request=stream.request[row],
        token=stream.token[row].astype(np.int64),
        phase=native.decode(),
        offsets=offsets,
        ids=(items - np.repeat(stream.first_item[column], np.diff(offsets))).astype(np.int32),
        hit=log["hit"].astype(bool),
        admitted_event=log["admitted_event"],
        copy_enqueued_ns=log["copy_enqueued_ns"] if len(log["copy_enqueued_ns"]) else unknown,
        copy_ready_ns=log["copy_ready_ns"] if len(log["copy_ready_ns"]) else unknown,
        copy_ready=log["copy_ready"],
        **parts,
    )
