"""The subcommand `moecache simulate`: arguments, progress and output; the work is done in pyanalysis.simulation."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from ggml_moecache.errors import MissingDependencyError
from pyanalysis.printing import write
from pyanalysis.simulate_arguments import add_parser, request_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyanalysis.cost import CostModel
    from pyanalysis.report import Sensitivity
    from pyanalysis.simulate_arguments import Request
    from pyanalysis.simulation import SimulationResult, TargetCapacity
    from pyanalysis.simulation.event_file import EventFile
    from pyanalysis.simulation.stream import EventStream
    from pyanalysis.traces import Trace

__all__ = ["add_parser", "run"]

_REPORT_ADDS = ("belady", "hindsight-static")
_FACTORS = (0.5, 2.0)
_OTHER_SIZE = 0.1  # one quantization mixes types: Q4_K_M's experts differ by 7 % from their mean


def run(given: argparse.Namespace) -> int:
    """Simulate and print. Raises MoeCacheError for anything that cannot work."""
    if given.list_policies:
        from pyanalysis.policy_list import policies_as_text  # noqa: PLC0415 - each command imports only what it needs

        write(policies_as_text() + "\n")
        return 0
    request = request_of(given)
    command = _Command(request)
    try:
        command.run()
    except BaseException:
        command.discard()
        raise
    return 0


# --- work -----------------------------------------------------------------------------------------------------------


class _Command:
    """One run. Files appear whole at its end, or not at all; what goes to stdout is printed trace by trace."""

    def __init__(self, request: Request) -> None:
        self._asked = request
        self._request = request  # of the trace at hand
        self._own_policies: set[str] = set()
        self._given = request.given
        self._printed = 0
        self._events: EventFile | None = None
        self._out: Any = None
        self._state: Any = None
        self._results: list[SimulationResult] = []
        self._reached: dict[str, list[TargetCapacity]] = {}
        self._sensitivity: dict[str, list[Sensitivity]] = {}

    def run(self) -> None:
        from pyanalysis.simulation.event_file import EventFile  # noqa: PLC0415
        from pyanalysis.simulation.warm import check_one_state  # noqa: PLC0415
        from pyanalysis.traces import logs_in  # noqa: PLC0415
        from pyanalysis.traces.staging import Staged  # noqa: PLC0415

        logs = [log for path in self._given.traces for log in logs_in(path)]
        if self._given.report:
            _require_report(self._given.report, force=self._given.force)
        if self._given.out:
            self._out = Staged(self._given.out, force=self._given.force)
        if self._given.events:
            self._events = EventFile(self._given.events, force=self._given.force)
        if self._given.state_out:
            check_one_state(logs, self._request.policies, self._request.capacities, self._given.mode)
            self._state = Staged(self._given.state_out, force=self._given.force)
        for log in logs:
            self._simulate(log)
        self._finish()

    def discard(self) -> None:
        for file in (self._events, self._out, self._state):
            if file is not None:
                file.discard()

    def _simulate(self, log: Path) -> None:
        from pyanalysis.traces import read_trace  # noqa: PLC0415

        trace = read_trace(log)
        for note in trace.notes:
            print(f"moecache: note: {log}: {note}", file=sys.stderr)
        self._request = self._asked.of_trace(trace)
        self._own_policies |= {_canonical(policy, self._given.seed) for policy in self._request.policies}
        if trace.model["n_experts"] is None and not trace.model["expert_bytes"]:
            print(
                f"moecache: note: {log}: the number of experts is not known, the largest id is taken for the last; "
                "moecache trace convert --experts N adds it",
                file=sys.stderr,
            )
        _note_sizes(trace, self._request.cost)
        if self._given.mode == "per-access" and self._request.cost is not None:
            print(
                f"moecache: note: {log}: per-access replay is a comparison of hit rates and has no times; --cost gives "
                "it the bytes of an expert only",
                file=sys.stderr,
            )
        replayed = self._replayed(trace)
        results = self._sweep(replayed, self._request.policies, f"simulating {log.name}")
        self._results += results
        if self._events:
            self._write_events(replayed, self._events)
        if self._state:
            self._write_state(replayed)
        if self._given.targets:
            self._reached[results[0].trace] = self._targets(trace, replayed, results)
        if self._out is None:
            self._print(results)
        if self._given.report:
            self._for_report(replayed, results)

    def _replayed(self, trace: Trace) -> Trace | EventStream:
        """The events, made once for everything that is done with them here; a cluster makes its own of the trace."""
        from pyanalysis.simulation.stream import EventStream  # noqa: PLC0415

        if self._given.scheduler:
            return trace
        n_bytes = self._request.cost.expert_bytes if self._request.cost else None
        options = {name: self._request.options[name] for name in ("batch_size", "mode")}
        return EventStream.of(trace, expert_bytes=n_bytes, **options)

    def _sweep(
        self,
        trace: Trace | EventStream,
        policies: Sequence[str],
        what: str,
        **changes: Any,  # noqa: ANN401 - options of sweep()
    ) -> list[SimulationResult]:
        from pyanalysis.simulation import sweep  # noqa: PLC0415
        from pyanalysis.simulation.cluster import sweep_on_cluster  # noqa: PLC0415
        from pyanalysis.simulation.progress import bar  # noqa: PLC0415
        from pyanalysis.simulation.stream import EventStream  # noqa: PLC0415

        capacities = changes.pop("capacities", self._request.capacities)
        options = {**self._request.options, **changes}
        with bar(what) as progress:
            if not isinstance(trace, EventStream):  # there is a scheduler, see _replayed
                address = self._given.scheduler
                return sweep_on_cluster(address, [trace], policies, capacities, progress=progress, **options)
            return sweep([trace], policies, capacities, workers=self._given.workers, progress=progress, **options)

    def _targets(
        self, trace: Trace, replayed: Trace | EventStream, results: list[SimulationResult]
    ) -> list[TargetCapacity]:
        """Of every capacity where a policy has one pass for all, of those simulated otherwise."""
        from pyanalysis.simulation import Replay, reached  # noqa: PLC0415
        from pyanalysis.simulation.arguments import stream_of  # noqa: PLC0415

        options, request = self._request.options, self._request
        stream = stream_of(
            trace if replayed is trace else replayed, request.cost, options["mode"], options["batch_size"]
        )
        replay = Replay(request.cost, options["per_layer"], options["timing"], options["seed"], victim_agreement=False)
        n = len(request.capacities)
        return [
            one
            for place, policy in enumerate(request.policies)
            for one in reached(stream, policy, request.targets, replay, results[place * n : (place + 1) * n])
        ]

    def _write_events(self, trace: Trace | EventStream, file: EventFile) -> None:
        """Every decision once more: a log of all combinations at once could outgrow the memory."""
        from pyanalysis.simulation import simulate  # noqa: PLC0415
        from pyanalysis.simulation.progress import bar  # noqa: PLC0415

        options = {**self._request.options, "victim_agreement": False}
        pairs = [(policy, capacity) for policy in self._request.policies for capacity in self._request.capacities]
        with bar(f"writing {self._given.events.name}") as progress:
            for done, (policy, capacity) in enumerate(pairs, 1):
                file.add(simulate(trace, policy, capacity, events=True, **options))
                progress(done, len(pairs))

    def _write_state(self, trace: Trace | EventStream) -> None:
        from pyanalysis.simulation.warm import state_after  # noqa: PLC0415

        options = {name: self._request.options[name] for name in ("per_layer", "batch_size", "seed", "cost")}
        state = state_after(trace, self._request.policies[0], self._request.capacities[0], **options)
        self._state.write((state.to_json() + "\n").encode())

    def _for_report(self, trace: Trace | EventStream, results: list[SimulationResult]) -> None:
        """The lines that a report compares with, and how the times change with the costs."""
        have = {result.policy for result in results}
        added = [policy for policy in _REPORT_ADDS if policy not in have]
        if added:
            self._results += self._sweep(trace, added, "adding the optimum and the static line")
        if self._request.cost is None or results[0].time_per_token_ns is None:
            return
        self._sensitivity[results[0].trace] = self._sensitivities(trace, results)

    def _sensitivities(self, trace: Trace | EventStream, results: list[SimulationResult]) -> list[Sensitivity]:
        """At the capacity in the middle of the sweep: with no or all experts resident only one side's costs count."""
        from pyanalysis.cost import COSTS  # noqa: PLC0415
        from pyanalysis.report import Sensitivity  # noqa: PLC0415

        cost = self._request.cost
        assert cost is not None  # noqa: S101 - the caller has looked
        own = sorted(self._request.capacities, key=lambda one: _experts_of(results, one))
        capacity = own[len(own) // 2]
        base = {r.policy: r for r in results if r.capacity == _name_of(capacity)}
        rows = []
        for field in (*COSTS, "copy_bandwidth_bytes_per_s"):
            if getattr(cost, field) == 0:
                continue
            for factor in _FACTORS:
                changed = self._sweep(
                    trace,
                    self._request.policies,
                    f"{field} x {factor:g}",
                    capacities=[capacity],
                    cost=cost.scaled(field, factor),
                    victim_agreement=False,
                )
                rows += [
                    Sensitivity(
                        r.policy,
                        r.capacity,
                        field,
                        factor,
                        r.time_per_token_ns or 0.0,
                        base[r.policy].time_per_token_ns or 0.0,
                    )
                    for r in changed
                ]
        return rows

    # --- output -----------------------------------------------------------------------------------------------------

    def _print(self, results: list[SimulationResult]) -> None:
        from pyanalysis.simulation import output  # noqa: PLC0415

        if self._given.json or self._given.form == "parquet":  # one document: at the end
            return
        if self._given.form == "table":
            text = ("\n\n" if self._printed else "") + output.as_table(results, self._reached) + "\n"
        elif self._given.form == "csv":
            text = output.as_csv(results, header=self._printed == 0)
        else:
            text = output.as_jsonl(results, self._reached)
        write(text, go_on=bool(self._given.report or self._events or self._state))
        self._printed += 1

    def _document(self) -> bytes:
        """The results asked for, in the form asked for, as one document."""
        from pyanalysis.simulation import output  # noqa: PLC0415

        results = [r for r in self._results if r.policy in self._own_policies]
        if self._given.json:
            return (json.dumps([result.row() for result in results], indent=2) + "\n").encode()
        forms: dict[str, Callable[[list[SimulationResult]], str]] = {
            "table": lambda r: output.as_table(r, self._reached) + "\n",
            "csv": output.as_csv,
            "jsonl": lambda r: output.as_jsonl(r, self._reached),
        }
        if self._given.form == "parquet":
            return output.as_parquet(results)
        return forms[self._given.form](results).encode()

    def _finish(self) -> None:
        if self._out is not None:
            self._out.write(self._document())
        if self._given.report:
            self._write_report()
        if self._events is not None:
            self._events.finish()
        for file in filter(None, (self._out, self._state)):
            file.commit()
        if self._out is None and (self._given.json or self._given.form == "parquet"):
            write(self._document())  # last: a reader may have left

    def _write_report(self) -> None:
        from pyanalysis.report import write_report  # noqa: PLC0415

        added = sorted({result.policy for result in self._results} - self._own_policies)
        notes = [f"Added by the report: {', '.join(added)}."] if added else []
        page = write_report(
            self._given.report,
            self._results,
            cost=self._request.cost,
            sensitivity=self._sensitivity,
            targets=self._request.targets,
            notes=notes,
            force=self._given.force,
        )
        print(f"moecache: note: wrote {page}", file=sys.stderr)


def _canonical(policy: str, seed: int) -> str:
    from ggml_moecache import _native  # noqa: PLC0415

    return _native.canonical_policy(policy, seed)


def _note_sizes(trace: Trace, cost: CostModel | None) -> None:
    """A cost model holds for experts of one size; say so where the trace has others."""
    sizes = sorted({layout["bytes"] for layout in trace.model["expert_bytes"] or []})
    if cost is None or cost.expert_bytes is None or not sizes:
        return
    if any(abs(n_bytes / cost.expert_bytes - 1) > _OTHER_SIZE for n_bytes in sizes):
        shown = " to ".join(f"{n_bytes:,}" for n_bytes in dict.fromkeys((sizes[0], sizes[-1])))
        print(
            f"moecache: note: {trace.path}: experts have {shown} bytes, the costs of {cost.name} are for "
            f"{cost.expert_bytes:,}: the times are not those of this model",
            file=sys.stderr,
        )


def _require_report(folder: Path, *, force: bool) -> None:
    """Refuse before the work what would be refused after it."""
    try:
        from pyanalysis.report.write import refuse_existing  # noqa: PLC0415
    except ImportError:
        raise MissingDependencyError("--report needs the extra 'report': pip install 'ggml-moecache[report]'") from None
    refuse_existing(folder, force=force)


def _name_of(capacity: str | int | list[int]) -> str:
    """As SimulationResult.capacity has it."""
    return ",".join(map(str, capacity)) if isinstance(capacity, list) else str(capacity)


def _experts_of(results: list[SimulationResult], capacity: str | int | list[int]) -> int:
    return next(result.capacity_experts for result in results if result.capacity == _name_of(capacity))
