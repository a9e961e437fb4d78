"""What must hold among the events of a log: checked on the columns of a Trace, each problem with its line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyanalysis.traces.errors import Problem
from pyanalysis.traces.event import FAMILIES_WITH_REPEATED_IDS, MOST_EXPERTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyanalysis.traces.log import OnProblem
    from pyanalysis.traces.trace import Array, Trace


def check_trace(trace: Trace, on_problem: OnProblem) -> None:
    """Hand every problem to `on_problem`, in this order: run.json, ids, order, missing layers, phases."""
    check = _Check(trace, on_problem)
    check.run()
    if trace.n_events == 0:
        return
    check.counts()
    check.ranges()
    check.repeats()
    if check.order():  # the others need each event once
        check.layers()
        check.phases()


def check_layers_of_run(traces: Sequence[Trace], on_problem: OnProblem) -> None:
    """Whether the logs of one directory hold together the layers that run.json says are logged."""
    first = traces[0]
    logged = first.model["moe_layers"]
    same_model = [t for t in traces if t.model == first.model]
    seen = set(np.concatenate([np.unique(t.layer) for t in same_model]).tolist())
    if logged is None or not seen:
        return
    complete = not any(t.n_lost for t in same_model)  # a lost event may have been its layer's only one
    if complete and (missing := sorted(set(logged) - seen)):
        on_problem(
            Problem(first.path, None, f"missing layers: no event of layer {_listed(missing)} of run.json's moe_layers")
        )
    if foreign := sorted(seen - set(logged)):
        on_problem(
            Problem(first.path, None, f"events of layer {_listed(foreign)}, which run.json's moe_layers does not have")
        )


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))


class _Check:
    def __init__(self, trace: Trace, on_problem: OnProblem) -> None:
        self.trace = trace
        self._on_problem = on_problem
        self._used = trace.ids >= 0

    def _report(self, bad: Array, reason: Any) -> None:  # noqa: ANN401 - a function from an index to the reason
        for index in np.flatnonzero(bad).tolist():
            self._on_problem(Problem(self.trace.path, int(self.trace.line[index]), reason(index)))

    def _place(self, index: int) -> str:
        t = self.trace
        family = t.families[t.family[index]]
        layer = f"layer {t.layer[index]}" + ("" if family == "exps" else f" ({family})")
        return f"request {t.request[index]}, token {t.token[index]}, {layer}"

    def run(self) -> None:
        t = self.trace
        if t.metadata["run_id"] != t.run_id:
            reason = f"run_id is {t.run_id!r}, run.json's is {t.metadata['run_id']!r}: log and run.json are of two runs"
            self._on_problem(Problem(t.path, None, reason))

    def counts(self) -> None:
        t = self.trace
        k = self._used.sum(axis=1)
        column, columns = t.columns
        seen = np.zeros((len(columns), int(k.max()) + 1), dtype=np.int64)
        np.add.at(seen, (column, k), 1)
        expected = seen.argmax(axis=1)
        known = t.model["top_k"]
        is_exps = np.array([t.families[family] == "exps" for _, family in columns])
        if known is not None:
            expected = np.where(is_exps, known, expected)

        def reason(index: int) -> str:
            other = (
                "the trace's top_k is"
                if known is not None and is_exps[column[index]]
                else "most events of the layer have"
            )
            return f"wrong count: expert_ids has {k[index]} ids, {other} {expected[column[index]]}"

        self._report(k != expected[column], reason)

    def ranges(self) -> None:
        t = self.trace
        column, columns = t.columns
        known = [t.n_experts(int(layer), t.families[family]) for layer, family in columns]
        limit = np.array([MOST_EXPERTS if n is None else n for n in known])
        largest = t.ids.max(axis=1)

        def reason(index: int) -> str:
            place, number = column[index], f"expert id {largest[index]} is out of range: "
            if known[place] is None:
                return number + f"the number of experts is not known, and ids must be below {MOST_EXPERTS:,}"
            return number + f"layer {t.layer[index]} has {limit[place]} experts"

        self._report(largest >= limit[column], reason)

    def repeats(self) -> None:
        t = self.trace
        ordered = np.sort(t.ids, axis=1)
        twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
        free = np.array([name in FAMILIES_WITH_REPEATED_IDS for name in t.families])
        self._report(
            twice.any(axis=1) & ~free[t.family],
            lambda i: f"expert id {ordered[i, 1:][twice[i]][0]} is repeated in the event",
        )

    def order(self) -> bool:
        """Whether each event is there once; tokens of one request must rise within a ubatch and layer."""
        t = self.trace
        column, _ = t.columns
        keys = (t.batch, t.request, column)
        by_place = np.lexsort((np.arange(t.n_events), *keys[::-1]))
        same = np.logical_and.reduce([key[by_place][1:] == key[by_place][:-1] for key in keys])
        falls = np.zeros(t.n_events, dtype=bool)
        falls[by_place[1:]] = same & (t.token[by_place][1:] < t.token[by_place][:-1])
        self._report(falls, lambda i: f"unsorted tokens: {self._place(i)} comes after a later token of its ubatch")
        by_token = np.lexsort((np.arange(t.n_events), t.token, *keys[::-1]))
        every = (*keys, t.token)
        same = np.logical_and.reduce([key[by_token][1:] == key[by_token][:-1] for key in every])
        twice = np.zeros(t.n_events, dtype=bool)
        twice[by_token[1:]] = same
        self._report(twice, lambda i: f"{self._place(i)} of ubatch {t.batch[i]} is recorded twice")
        return not twice.any()

    def layers(self) -> None:
        """Each token must have an event of each layer, as far as nothing is known to be lost."""
        t = self.trace
        column, columns = t.columns
        partial = t.model["layers_with_output_rows_only"]
        partial = [int(columns[:, 0].max())] if partial is None else partial
        whole = ~np.isin(columns[:, 0], partial)
        counted = whole[column]
        n_seen = np.bincount(t.tokens.of_event[counted], minlength=len(t.tokens))
        missing = (n_seen < whole.sum()) & ~t.may_lack_events(t.tokens.batch)
        if not missing.any():
            return
        first_event = np.full(len(t.tokens), t.n_events)
        np.minimum.at(first_event, t.tokens.of_event, np.arange(t.n_events))
        seen = np.zeros((int(missing.sum()), len(columns)), dtype=bool)
        row_of = np.cumsum(missing) - 1
        of_missing = missing[t.tokens.of_event]
        seen[row_of[t.tokens.of_event[of_missing]], column[of_missing]] = True
        for row, token in enumerate(np.flatnonzero(missing).tolist()):
            index = int(first_event[token])
            absent = [int(layer) for layer in np.unique(columns[whole & ~seen[row], 0])]
            which = f"request {t.request[index]}, token {t.token[index]}"
            reason = f"missing layers: {which} has no event of layer {_listed(absent)}"
            self._on_problem(Problem(t.path, int(t.line[index]), reason))

    def phases(self) -> None:
        t = self.trace
        decode = t.phase == 1
        self._report(
            decode & (t.token == 0) & (t.batch >= 0),
            lambda i: f"phase is decode, but {self._place(i)} is the first token",
        )
        # Of a request's tokens in a ubatch either all are given or all are generated (a draft with its first token).
        tokens = t.tokens
        recorded = tokens.batch >= 0
        starts = np.ones(len(tokens), dtype=bool)
        starts[1:] = (tokens.batch[1:] != tokens.batch[:-1]) | (tokens.request[1:] != tokens.request[:-1])
        group = np.cumsum(starts) - 1
        some_prefill = np.zeros(group[-1] + 1, dtype=bool)
        some_prefill[group[tokens.of_event[~decode]]] = True
        mixed = (some_prefill[group] & recorded)[tokens.of_event]
        self._report(
            decode & mixed,
            lambda i: (
                f"phase is decode, but another event of request {t.request[i]} in ubatch {t.batch[i]} says prefill"
            ),
        )
