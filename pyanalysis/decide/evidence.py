"""Every policy, capacity and cost model over one trace: what the decision rests on."""

from __future__ import annotations

import functools
import tempfile
from concurrent.futures import as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ggml_moecache import _native
from ggml_moecache.errors import ConfigError
from pyanalysis import threads
from pyanalysis.decide.parts import Split, first_tokens, splits_of
from pyanalysis.decide.replays import Replayer, Sums
from pyanalysis.simulation import EventStream
from pyanalysis.simulation.capacity import slots_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyanalysis.cost import CostModel
    from pyanalysis.traces import Trace

    Array = np.ndarray[Any, np.dtype[Any]]

STATIC = "static"  # chosen on the selection part: what a user can run
BOUND = "hindsight-static"  # chosen on the held-out part itself: no static set hits more
COLD = "cold-static"
OPTIMUM = "belady"
ADAPTIVE_POLICIES = (
    "cumulative-lfu",
    "cumulative-lfu:tie=recency",
    "lru",
    *(f"decayed-lfu:half-life={tokens}" for tokens in (16, 32, 64, 256, 1024, 4096)),
    *(f"windowed-lfu:window={tokens}" for tokens in (32, 64, 256, 1024, 4096)),
    *(f"lfru:weight={weight}" for weight in (16, 64, 256, 1024)),
    "request-lfu",
)
PERCENTS = (0, 0.5, 1, 2, 3, 4, 5, 7.5, 10, 15, 20, 25, 30, 40, 50, 60, 75, 90, 100)
_OTHER_SIZE = 0.1  # experts of one quantization differ by 7 % from their mean; a model's costs still hold for them


@dataclass(frozen=True)
class Options:
    """How to gather; `adaptive` are canonical names, `percents` capacities in per cent of the experts, rising."""

    costs: tuple[CostModel, ...]
    adaptive: tuple[str, ...]
    percents: tuple[float, ...] = PERCENTS
    per_layer: bool = False
    batch_size: int = 512
    first_tokens: int | None = None
    workers: int | None = None


@dataclass(frozen=True, eq=False)
class Evidence:
    """Of one trace. `sums`: of the held-out parts by (cost, split, policy, percent).

    slots          of each percent, those of the budgets
    selection      (ns, copies) per token of the selection parts of the adaptive policies, by the same key
    uses           int64[items] of each split's held-out part
    sizes          bytes of its experts as the trace knows them; empty: it does not
    replaced       cost models whose size of expert stands for them
    sequences      most requests of which one ubatch decodes a token; None: ubatches are not recorded
    """

    name: str
    trace: Trace
    splits: tuple[Split, ...]
    slots: dict[float, tuple[int, ...]]
    costs: dict[str, CostModel]
    replayers: dict[str, Replayer]
    sums: dict[tuple[str, str, str, float], Sums]
    selection: dict[tuple[str, str, str, float], tuple[float, float]]
    uses: dict[str, Array]
    sizes: tuple[int, ...]
    replaced: tuple[str, ...]
    sequences: int | None
    n_tokens_of_file: int
    notes: tuple[str, ...] = field(default=())

    @property
    def group(self) -> str:
        """Batch 1 and several sequences at once are never averaged."""
        return "batch 1" if self.sequences in (None, 1) else f"{self.sequences} sequences in parallel"

    @property
    def stream(self) -> EventStream:
        return next(iter(self.replayers.values())).stream


def canonical(policies: Iterable[str]) -> tuple[str, ...]:
    """The names of adaptive policies as results have them, each once. Raises ConfigError for any other policy."""
    infos = {info.name: info for info in _native.policies()}
    names = []
    for policy in policies:
        try:
            name = _native.canonical_policy(policy)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        info = infos[name.split(":")[0]]
        if info.needs_future or info.per_access_only or "static" in info.name:
            raise ConfigError(
                f"--adaptive takes policies that a runtime can run and that change. Got '{policy}' instead."
            )
        names.append(name)
    return tuple(dict.fromkeys(names))


def gather(
    trace: Trace, options: Options, progress: Callable[[int, int], None], *, name: str | None = None
) -> Evidence:
    """Replay `trace`; `progress` is called with (replays done, in all). Raises ConfigError.

    name   of the trace in the report; default: that of its file
    """
    n_tokens = len(trace.tokens)
    if options.first_tokens is not None and options.first_tokens < n_tokens:
        trace = first_tokens(trace, options.first_tokens)
    sizes = tuple(sorted({one["bytes"] for one in trace.model["expert_bytes"] or []}))
    replayers, replaced = {}, []
    for cost in options.costs:
        other = bool(sizes) and any(abs(n / (cost.expert_bytes or n) - 1) > _OTHER_SIZE for n in sizes)
        replaced += [cost.name] if other else []
        stream = EventStream.of(
            trace, batch_size=options.batch_size, expert_bytes=cost.expert_bytes, replace_bytes=other
        )
        replayers[cost.name] = Replayer(stream, per_layer=options.per_layer)
    splits = tuple(splits_of(trace, stream))
    slots = _slots(stream, options)
    made = _Gathering(replayers, splits, slots, options)
    with tempfile.TemporaryDirectory() as folder:
        made.run(Path(folder), progress)
    return Evidence(
        name=name or trace.path.name,
        trace=trace,
        splits=splits,
        slots=slots,
        costs={cost.name: cost for cost in options.costs},
        replayers=replayers,
        sums=made.sums,
        selection=made.selection,
        uses={split.name: next(iter(replayers.values())).uses(split.held_out) for split in splits},
        sizes=sizes,
        replaced=tuple(replaced),
        sequences=_sequences(trace),
        n_tokens_of_file=n_tokens,
        notes=trace.notes,
    )


def _slots(stream: EventStream, options: Options) -> dict[float, tuple[int, ...]]:
    """Of each percent; percentages that come to the same slots are one capacity, the lowest of them."""
    if not stream.experts_known:
        raise ConfigError(
            f"{stream.trace}: the number of experts is not known, and a capacity is a share of it; "
            "moecache trace convert --experts N adds it"
        )
    found: dict[tuple[int, ...], float] = {}
    for percent in options.percents:
        capacity: str | int = f"{percent:g}%" if percent else 0
        found.setdefault(slots_of(stream, capacity, per_layer=options.per_layer), percent)
    return {percent: slots for slots, percent in found.items()}


def _sequences(trace: Trace) -> int | None:
    if trace.n_events == 0 or trace.batch.min() < 0:
        return None
    decode = trace.phase == 1
    pairs = np.unique(np.stack([trace.batch[decode], trace.request[decode]]), axis=1)
    return int(np.unique(pairs[0], return_counts=True)[1].max()) if pairs.size else 1


class _Gathering:
    """The replays of one trace, by several threads."""

    def __init__(
        self,
        replayers: dict[str, Replayer],
        splits: Sequence[Split],
        slots: dict[float, tuple[int, ...]],
        options: Options,
    ) -> None:
        self._replayers, self._splits, self._slots, self._options = replayers, splits, slots, options
        self.sums: dict[tuple[str, str, str, float], Sums] = {}
        self.selection: dict[tuple[str, str, str, float], tuple[float, float]] = {}

    def run(self, folder: Path, progress: Callable[[int, int], None]) -> None:
        jobs: list[Callable[[], None]] = []
        for cost in self._options.costs:
            for policy in (*self._options.adaptive, COLD, OPTIMUM):
                jobs += [functools.partial(self._online, cost, policy, percent) for percent in self._slots]
        any_cost = next(iter(self._replayers.values()))  # what is placed beforehand waits for no copy
        for split in self._splits:
            for name, part in ((STATIC, split.selection), (BOUND, split.held_out)):
                file = folder / f"{split.name}-{name}.csv"
                any_cost.write_ranking(file, any_cost.uses(part))
                jobs += [functools.partial(self._static, split, name, file, percent) for percent in self._slots]
        in_threads(jobs, self._options.workers, progress)

    def _online(self, cost: CostModel, policy: str, percent: float) -> None:
        replayer = self._replayers[cost.name]
        replayed = replayer.replay(policy, self._slots[percent], cost)
        for split in self._splits:
            key = (cost.name, split.name, policy, percent)
            self.sums[key] = replayer.sums(replayed, split.held_out)
            if policy in self._options.adaptive:
                sums = replayer.sums(replayed, split.selection)
                n_tokens = int(sums.tokens.sum())
                self.selection[key] = (float(sums.time_ns(cost).sum() / n_tokens), sums.copies / n_tokens)

    def _static(self, split: Split, name: str, file: Path, percent: float) -> None:
        replayer = next(iter(self._replayers.values()))
        sums = replayer.sums(replayer.replay(f"static:file={file}", self._slots[percent], None), split.held_out)
        for cost in self._options.costs:
            self.sums[cost.name, split.name, name, percent] = sums


def with_cost(evidence: Evidence, name: str, cost: CostModel, adaptive: str, percents: Sequence[float]) -> Evidence:
    """The same trace with `cost` instead of the cost model `name`: candidates and bound, at 0 and at `percents`.

    What never waits for a copy is the same as before; the others are replayed, in the calling thread.
    """
    at = [percent for percent in percents if percent in evidence.slots]
    replayer = evidence.replayers[name]
    sums = {}
    for split in evidence.splits:
        sums[cost.name, split.name, adaptive, 0.0] = evidence.sums[name, split.name, adaptive, 0.0]
        for policy in (STATIC, BOUND, COLD):
            for percent in (0.0, *at):
                sums[cost.name, split.name, policy, percent] = evidence.sums[name, split.name, policy, percent]
    for policy in (adaptive, COLD):
        for percent in at:
            replayed = replayer.replay(policy, evidence.slots[percent], cost)
            for split in evidence.splits:
                sums[cost.name, split.name, policy, percent] = replayer.sums(replayed, split.held_out)
    slots = {percent: evidence.slots[percent] for percent in (0.0, *at)}
    return replace(evidence, slots=slots, costs={cost.name: cost}, replayers={cost.name: replayer}, sums=sums)


def in_threads(jobs: Sequence[Callable[[], None]], workers: int | None, progress: Callable[[int, int], None]) -> None:
    """Run all jobs; the first error stops those that have not begun."""
    with threads.pool(workers) as pool:
        futures = [pool.submit(job) for job in jobs]
        for done, future in enumerate(as_completed(futures), 1):
            future.result()
            progress(done, len(jobs))
