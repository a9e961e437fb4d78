"""`moecache bench simulate`: the simulator beside libcachesim on one stream, a whole sweep, and how its time grows.

Throughput: all arms replay the same accesses (one global budget, one object per layer and expert, each of size 1) in
turn, once per round. Making our event stream, writing libcachesim's file and making its cache are outside of the time.
libcachesim reads its own binary format from a file in the page cache with its own C code. Per-access arms must agree on
the number of hits, or the run is refused.

Sweep: a process of its own, so that its peak memory is its own; the time from the first policy to the last result,
without reading the trace; with victim agreement, as moecache simulate computes it, unless --no-victim-agreement is
said. The throughput and the growth are without it.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ggml_moecache.errors import BackendError, MissingDependencyError
from pyanalysis.simulation import simulate, sweep
from pyanalysis.simulation.output import aligned
from pyanalysis.simulation.stream import EventStream
from pyanalysis.traces import read_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyanalysis.traces import Trace

    Replay = Callable[[], tuple[int, int]]  # replays once, gives (accesses, hits)

POLICIES = (
    *("lru", "cumulative-lfu", "decayed-lfu", "windowed-lfu", "lfru", "request-lfu", "interval-refresh", "belady"),
)
N_CAPACITIES = 33
# A record of libCacheSim's oracleGeneral format.
_RECORD = np.dtype([("time", "<u4"), ("id", "<u8"), ("bytes", "<u4"), ("next", "<i8")])


@dataclass(frozen=True)
class Arm:
    """One program and policy over the stream at one capacity: seconds of each round, accesses that hit."""

    program: str
    policy: str
    experts: int
    accesses: int
    hits: int
    seconds: list[float]

    @property
    def per_s(self) -> float:
        """Accesses per second, median of the rounds."""
        return self.accesses / statistics.median(self.seconds)


@dataclass(frozen=True)
class Sweep:
    """A sweep in a process of its own."""

    policies: list[str]
    capacities: list[int]
    accesses: int
    workers: int
    seconds: float
    victim_agreement: bool  # computed for every result
    peak_bytes: int  # of the process, the trace included
    read_bytes: int  # of the process before the sweep began


@dataclass(frozen=True)
class Growth:
    """One point: what was varied, its size, and the seconds of a sweep."""

    varied: str
    tokens: int
    layers: int
    experts: int
    capacities: int
    seconds: float


# --- throughput -----------------------------------------------------------------------------------------------------


def throughput(trace: Trace, capacities: Sequence[str], rounds: int) -> list[Arm]:
    """LRU and LFU at each capacity: libcachesim, our per-access mode, our event-atomic mode. Raises MoeCacheError."""
    atomic, single = (EventStream.of(trace, mode=mode) for mode in ("event-atomic", "per-access"))
    found = []
    for capacity in capacities:
        # 12 is a number of experts, "12%" a share of them: as in moecache simulate.
        slots = simulate(atomic, "lru", int(capacity) if capacity.isdigit() else capacity).capacity_experts
        found += _throughput(trace, atomic, single, slots, rounds)
    return found


def _throughput(trace: Trace, atomic: EventStream, single: EventStream, slots: int, rounds: int) -> list[Arm]:
    results: dict[tuple[str, str], tuple[int, int]] = {}
    seconds: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="moecache-bench-") as scratch:
        arms = _arms(trace, atomic, single, slots, Path(scratch))
        for number in range(rounds):
            for key, prepare in arms.items():
                run = prepare()
                started = time.perf_counter()
                results[key] = run()
                seconds.setdefault(key, []).append(time.perf_counter() - started)
            print(f"{slots} experts: round {number + 1}/{rounds}", file=sys.stderr, flush=True)
    _must_agree(results)
    return [Arm(*key, slots, *results[key], seconds[key]) for key in arms]


def _arms(
    trace: Trace, atomic: EventStream, single: EventStream, slots: int, scratch: Path
) -> dict[tuple[str, str], Callable[[], Replay]]:
    """(program, policy) to what prepares one replay, outside of the time, and returns it."""
    try:
        import libcachesim  # noqa: PLC0415 - an optional extra
    except ImportError:
        raise MissingDependencyError(
            "moecache bench simulate needs the extra 'bench': pip install 'ggml-moecache[bench]'"
        ) from None
    n_accesses = _write_oracle(trace, scratch / "stream.oracleGeneral.bin")

    def theirs(kind: Any) -> Callable[[], Replay]:  # noqa: ANN401 - untyped package
        def prepare() -> Replay:
            path = str(scratch / "stream.oracleGeneral.bin")
            reader = libcachesim.TraceReader(path, libcachesim.TraceType.ORACLE_GENERAL_TRACE)
            # Its hash table is allocated here; by default it has room for 2^24 objects, which only costs it time.
            cache = kind(slots, hashpower=max(slots, 1).bit_length() + 2)
            return lambda: _hits(cache.process_trace(reader)[0], n_accesses)

        return prepare

    def ours(stream: EventStream, policy: str) -> Callable[[], Replay]:
        def run() -> tuple[int, int]:
            result = simulate(stream, policy, slots, victim_agreement=False)  # they do not compute it
            return result.accesses, result.hits

        return lambda: run

    return {
        ("libcachesim", "LRU"): theirs(libcachesim.LRU),
        ("moecache per access", "lru"): ours(single, "lru"),
        ("moecache event-atomic", "lru"): ours(atomic, "lru"),
        ("libcachesim", "LFU"): theirs(libcachesim.LFU),
        ("moecache per access", "lfu"): ours(single, "lfu"),
        ("moecache event-atomic", "cumulative-lfu"): ours(atomic, "cumulative-lfu"),
    }


def _hits(miss_ratio: float, n_accesses: int) -> tuple[int, int]:
    return n_accesses, n_accesses - round(miss_ratio * n_accesses)


def _write_oracle(trace: Trace, path: Path) -> int:
    """The trace's accesses in order, as libCacheSim's oracleGeneral; returns their number."""
    column, _ = trace.columns
    n_experts = int(trace.ids.max()) + 1
    used = trace.ids >= 0
    records = np.zeros(int(used.sum()), dtype=_RECORD)
    records["id"] = (column[:, None].astype(np.uint64) * np.uint64(n_experts) + trace.ids.astype(np.uint64))[used]
    records["bytes"] = 1
    records["next"] = -1  # neither LRU nor LFU looks at it
    records.tofile(path)
    return len(records)


def _must_agree(results: dict[tuple[str, str], tuple[int, int]]) -> None:
    for theirs, ours in (("LRU", "lru"), ("LFU", "lfu")):
        one, other = results["libcachesim", theirs], results["moecache per access", ours]
        if one != other:
            raise BackendError(
                f"per-access {ours} has {other[1]} hits in {other[0]} accesses, libcachesim {one[1]} in {one[0]}: "
                "they did not do the same work, so their times are not compared"
            )


# --- sweep ----------------------------------------------------------------------------------------------------------


def capacities_of(trace: Trace) -> list[int]:
    """33 numbers of experts per layer, from none to all, as even as whole numbers allow."""
    _, columns = trace.columns
    known = [trace.n_experts(int(layer), trace.families[family]) for layer, family in columns]
    most = max((n for n in known if n), default=int(trace.ids.max()) + 1)
    return sorted({round(most * place / (N_CAPACITIES - 1)) for place in range(N_CAPACITIES)})


def measured_sweep(path: Path, workers: int | None, *, victim_agreement: bool = True) -> Sweep:
    """8 policies at 33 capacities over the whole trace, in a process of its own. Raises BackendError."""
    command = [
        sys.executable,
        "-m",
        "pyanalysis.bench_simulate",
        str(path),
        str(workers or 0),
        str(int(victim_agreement)),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise BackendError(f"the sweep over {path} failed, see above")
    return Sweep(**json.loads(done.stdout))


def _sweep_here(path: Path, workers: int | None, *, victim_agreement: bool) -> Sweep:
    trace = read_trace(path)
    capacities = capacities_of(trace)
    read_bytes = _peak_bytes()
    started = time.perf_counter()
    results = sweep([trace], POLICIES, capacities, per_layer=True, victim_agreement=victim_agreement, workers=workers)
    seconds = time.perf_counter() - started
    used = workers or len(_cpus())
    accesses = results[0].accesses
    return Sweep(list(POLICIES), capacities, accesses, used, seconds, victim_agreement, _peak_bytes(), read_bytes)


def _cpus() -> set[int]:
    import os  # noqa: PLC0415

    return os.sched_getaffinity(0)


def _peak_bytes() -> int:
    """Of this process since it was started; getrusage would count the process that started it."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)[1]) * 1024  # type: ignore[index] # Linux has it


# --- report ---------------------------------------------------------------------------------------------------------


def as_text(arms: Sequence[Arm], swept: Sweep, growth: Sequence[Growth]) -> str:
    """Aligned tables: throughput with its ratio to libcachesim, the sweep, growth."""
    base = {"lru": "LRU", "lfu": "LFU", "cumulative-lfu": "LFU", "LRU": "LRU", "LFU": "LFU"}
    theirs = {(arm.policy, arm.experts): arm.per_s for arm in arms if arm.program == "libcachesim"}
    rows = [["program", "policy", "experts", "accesses/s", "of libcachesim", "min s", "max s", "hit rate"]]
    rows += [
        [
            *(arm.program, arm.policy, f"{arm.experts:,}", f"{arm.per_s / 1e6:,.1f} M"),
            f"{arm.per_s / theirs[base[arm.policy], arm.experts]:.2f}",
            *(f"{min(arm.seconds):.3f}", f"{max(arm.seconds):.3f}", f"{arm.hits / arm.accesses:.4f}"),
        ]
        for arm in arms
    ]
    n_replays = len(swept.policies) * len(swept.capacities)
    per_s = n_replays * swept.accesses / swept.seconds / 1e6
    size = f"{len(swept.policies)} policies x {len(swept.capacities)} capacities x {swept.accesses:,} accesses"
    peak, after_reading = swept.peak_bytes / 2**20, swept.read_bytes / 2**20
    judged = f"{'with' if swept.victim_agreement else 'without'} victim agreement"
    lines = [
        *aligned(rows, 2),
        "",
        f"sweep     {size}: {swept.seconds:.1f} s with {swept.workers} threads, {per_s:,.0f} M accesses/s, {judged}",
        f"memory    {peak:,.0f} MiB at most; {after_reading:,.0f} MiB at most while reading the trace",
    ]
    if growth:
        grown = [["varied", "tokens", "layers", "experts", "capacities", "seconds", "of the first"]]
        first = {point.varied: point.seconds for point in reversed(growth)}
        grown += [
            [
                *(point.varied, f"{point.tokens:,}", str(point.layers), str(point.experts), str(point.capacities)),
                *(f"{point.seconds:.2f}", f"{point.seconds / first[point.varied]:.2f}"),
            ]
            for point in growth
        ]
        lines += ["", *aligned(grown, 1)]
    return "\n".join(lines)


def as_json(arms: Sequence[Arm], swept: Sweep, growth: Sequence[Growth]) -> str:
    """Every figure of every round."""
    values = {
        "throughput": [{**asdict(arm), "accesses_per_s": arm.per_s} for arm in arms],
        "sweep": asdict(swept),
        "growth": [asdict(point) for point in growth],
    }
    return json.dumps(values, indent=2)


if __name__ == "__main__":  # the process of measured_sweep
    print(
        json.dumps(
            asdict(_sweep_here(Path(sys.argv[1]), int(sys.argv[2]) or None, victim_agreement=sys.argv[3] == "1"))
        )
    )
