"""The speed of the simulator, beside libCacheSim on the same requests, and how the time of a sweep grows.

libCacheSim replays request by request over one cache for all layers, so that is what is compared: its LRU and LFU
against our lru and cumulative-lfu, event-atomic, one budget, in turn in one run. Reading and preparing stays outside
the timed part on both sides. The sweep is eight policies over 33 capacities of each layer.
"""

from __future__ import annotations

import json
import resource
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ggml_moecache.errors import ConfigError, MissingDependencyError
from pyanalysis.simulation import EventStream, simulate, sweep

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyanalysis.traces import Trace

SWEPT = (
    *("cumulative-lfu", "lru", "decayed-lfu", "windowed-lfu", "lfru", "request-lfu", "belady"),
    "hindsight-static",
)
N_CAPACITIES = 33
_OURS = {"LRU": "lru", "LFU": "cumulative-lfu"}


@dataclass(frozen=True)
class Pair:
    """One algorithm at one capacity; accesses per second of each round, both arms of a round side by side."""

    algorithm: str
    capacity_experts: int
    ours: list[float]
    theirs: list[float]

    @property
    def ratios(self) -> list[float]:
        return [a / b for a, b in zip(self.ours, self.theirs, strict=True)]


@dataclass(frozen=True)
class Timed:
    """A sweep: what was swept and the seconds it took."""

    name: str
    n_tokens: int
    n_layers: int
    n_experts: int
    n_capacities: int
    seconds: float


@dataclass(frozen=True)
class Measured:
    n_events: int
    n_accesses: int
    pairs: list[Pair]
    sweeps: list[Timed]
    peak_bytes: int  # of the process, the trace included


def measure(trace: Trace, shares: list[str], n_rounds: int) -> Measured:
    """`shares`: capacities of the comparison. Raises ConfigError, MissingDependencyError."""
    if n_rounds < 1:
        raise ConfigError(
            f"The '--rounds' option of moecache bench simulate must be at least 1. Got {n_rounds} instead."
        )
    stream = EventStream.of(trace)
    pairs = _compare(stream, shares, n_rounds)
    sweeps = [_timed_sweep("the whole trace", trace, N_CAPACITIES)]
    tokens, layers = len(trace.tokens), np.unique(trace.layer)
    sweeps.append(_timed_sweep("half of the capacities", trace, N_CAPACITIES // 2 + 1))
    sweeps.append(_timed_sweep("one capacity", trace, 1))
    if tokens > 1:
        sweeps.append(
            _timed_sweep("half of the tokens", _part(trace, trace.tokens.of_event < tokens // 2), N_CAPACITIES)
        )
    if len(layers) > 1:
        half = np.isin(trace.layer, layers[: len(layers) // 2])
        sweeps.append(_timed_sweep("half of the layers", _part(trace, half), N_CAPACITIES))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Measured(stream.native.n_events, stream.native.n_accesses, pairs, sweeps, peak)


def _part(trace: Trace, keep: Any) -> Trace:  # noqa: ANN401 - a mask over the events
    columns = ("request", "token", "layer", "family", "phase", "batch", "ids", "line")
    fields = {name: getattr(trace, name) for name in trace.__dataclass_fields__}
    return type(trace)(**{**fields, **{name: fields[name][keep] for name in columns}, "weights": None, "top1": None})


def _timed_sweep(name: str, trace: Trace, n_capacities: int) -> Timed:
    """Capacities from none to all experts of a layer, in equal steps as far as experts go."""
    stream = EventStream.of(trace)
    most = max(n for _, _, n, _ in stream.columns)
    capacities = sorted({round(most * step / max(n_capacities - 1, 1)) for step in range(n_capacities)})
    capacities = [most // 4] if n_capacities == 1 else capacities
    seconds = _seconds(lambda: sweep([stream], SWEPT, capacities, per_layer=True))
    n_layers = len(stream.columns)
    return Timed(name, stream.n_tokens, n_layers, most, len(capacities), seconds)


def _seconds(what: Callable[[], object]) -> float:
    started = time.perf_counter()
    what()
    return time.perf_counter() - started


def _compare(stream: EventStream, shares: list[str], n_rounds: int) -> list[Pair]:
    try:
        import libcachesim  # noqa: PLC0415 - an optional extra
    except ImportError:
        raise MissingDependencyError(
            "moecache bench simulate compares with libCacheSim: pip install 'ggml-moecache[test]'"
        ) from None
    n_accesses = stream.native.n_accesses
    pairs = []
    with tempfile.TemporaryDirectory(prefix="moecache-bench-") as scratch:
        requests = Path(scratch) / "requests"
        _write_requests(stream, requests)

        def theirs(algorithm: str, capacity: int) -> float:
            reader = libcachesim.TraceReader(
                trace=str(requests),
                trace_type=libcachesim.TraceType.ORACLE_GENERAL_TRACE,
                reader_init_params=libcachesim.ReaderInitParam(ignore_obj_size=True),
            )
            cache = getattr(libcachesim, algorithm)(cache_size=capacity)
            return n_accesses / _seconds(lambda: cache.process_trace(reader))

        for algorithm, policy in _OURS.items():
            for share in shares:
                capacity = simulate(stream, policy, share).capacity_experts
                pairs.append(_pair(stream, algorithm, capacity, theirs, n_rounds))
    return pairs


def _pair(
    stream: EventStream, algorithm: str, capacity: int, theirs: Callable[[str, int], float], n_rounds: int
) -> Pair:
    """The arms in turn and in turn first."""
    pair = Pair(algorithm, capacity, [], [])
    for index in range(n_rounds):
        for ours in (index % 2 == 0, index % 2 == 1):
            if ours:
                seconds = _seconds(lambda: simulate(stream, _OURS[algorithm], capacity))
                pair.ours.append(stream.native.n_accesses / seconds)
            else:
                pair.theirs.append(theirs(algorithm, capacity))
    return pair


def _write_requests(stream: EventStream, path: Path) -> None:
    """LibCacheSim's oracleGeneral format; LRU and LFU do not look at the next access, which is left at -1."""
    items = stream.native.items()
    kind = np.dtype([("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")])
    records = np.zeros(len(items), dtype=kind)
    records["time"] = np.arange(len(items))
    records["object"] = items.astype(np.uint64) + 1
    records["size"] = 1
    records["next"] = -1
    records.tofile(path)


def report(measured: Measured, *, as_json: bool) -> str:
    """The figures as a table, or all of them as JSON."""
    if as_json:
        return json.dumps(asdict(measured))
    lines = [
        f"{measured.n_accesses:,} accesses in {measured.n_events:,} events; million accesses per second, medians",
        "",
        "| algorithm | experts cached | ours | libCacheSim | ratio (all rounds) |",
        "|---|---|---|---|---|",
    ]
    for pair in measured.pairs:
        ours, theirs = (statistics.median(arm) / 1e6 for arm in (pair.ours, pair.theirs))
        ratio = f"{statistics.median(pair.ratios):.1f} ({min(pair.ratios):.1f} to {max(pair.ratios):.1f})"
        lines.append(f"| {pair.algorithm} | {pair.capacity_experts} | {ours:.1f} | {theirs:.1f} | {ratio} |")
    lines += [
        "",
        f"sweeps of {len(SWEPT)} policies, one budget per layer",
        "",
        "| sweep | tokens | layers | experts | capacities | seconds |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {s.name} | {s.n_tokens:,} | {s.n_layers} | {s.n_experts} | {s.n_capacities} | {s.seconds:.1f} |"
        for s in measured.sweeps
    ]
    return "\n".join([*lines, "", f"peak memory {measured.peak_bytes / 2**30:.2f} GiB, the trace included"])
