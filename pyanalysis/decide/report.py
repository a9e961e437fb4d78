"""The report of a decision: README.md and index.html of the same blocks, decision.json, points.parquet."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pyanalysis.decide import tables
from pyanalysis.decide.document import Code, Drawing, Heading, Items, Paragraph, Shown, as_html, as_markdown
from pyanalysis.decide.evidence import BOUND, COLD, STATIC
from pyanalysis.decide.intervals import Interval
from pyanalysis.decide.parts import BLOCK_TOKENS, FEWEST_REQUESTS, FEWEST_UNITS
from pyanalysis.decide.verdict import flips
from pyanalysis.simulation.regime import line

if TYPE_CHECKING:
    from pathlib import Path

    from pyanalysis.decide.cells import Point
    from pyanalysis.decide.decision import Decision, Group
    from pyanalysis.decide.document import Block
    from pyanalysis.decide.evidence import Evidence
    from pyanalysis.decide.verdict import Verdict
    from pyanalysis.simulation.regime import Regime

TITLE = "moecache decide"
_RULES = (
    (
        "Held-out requests: the first half of the requests is selected on, the rest is evaluated. Held-out tokens: of "
        "each request the first half of its decoded tokens is selected on, the rest evaluated. Every replay runs over "
        "the whole trace, prompts included; only decoded tokens of the held-out part count."
    ),
    (
        f"{STATIC} is the most used experts of the selection part, placed before the first event: a static set that a "
        f"user can run. {BOUND} is the most used experts of the held-out part itself: no static set hits more, and "
        f"nobody can run it. {COLD} keeps the first experts that are used. belady is the optimum over the whole trace "
        "from an empty cache; on a part it can lie below a set that was placed beforehand."
    ),
    (
        "Adaptive is one policy for all traces: the smallest mean loss of time against the fastest adaptive policy, "
        "over traces, splits, costs and capacities of 5 to 60 %, on the selection parts only."
    ),
    (
        f"Intervals are 95 % bootstrap intervals over requests, or over blocks of {BLOCK_TOKENS} tokens with fewer "
        f"than {FEWEST_REQUESTS} requests, the same draws for all policies; fewer than {FEWEST_UNITS} units have none "
        "and such cells do not vote."
    ),
    (
        "Margins, fixed beforehand: adaptive equals the best static set if its time per token is at most 2 % and its "
        "hit rate at most 1 point worse, whole intervals, at every capacity of 5 to 60 %. More than 2 % of time, the "
        "whole interval, is faster or slower. A cell is one trace, held-out part, cost model and capacity."
    ),
    (
        "{budget}; clocked timing: a copy is a hit only when the cost model says that it is complete. The time for the "
        "policy's own bookkeeping is in no cost model; what a copy takes from its token is copy_event_ns, where a cost "
        "model has it. "
        "Parallel sequences are replayed one event after the other: what a batch saves is not in their times."
    ),
)
FOR_YOUR_MODEL = """\
moecache record --workload long,heterogeneous -m MODEL.gguf
moecache calibrate -m MODEL.gguf -o my-machine.json
moecache decide recorded/long/parallel-1 recorded/heterogeneous/parallel-1 --cost my-machine.json --report decision"""


def conclusion(decision: Decision) -> list[Block]:
    """What is recommended and why."""
    recommended = decision.recommended
    if recommended is None:
        first = "Nothing is recommended: the evidence is too short for intervals."
    elif recommended == "no cache":
        first = "Recommended: no cache (capacity 0). Nothing beats doing nothing."
    else:
        first = f"Recommended: {recommended}."
    blocks: list[Block] = [Paragraph(first)]
    for group in decision.groups:
        verdict = group.verdict
        blocks.append(
            Paragraph(
                f"{group.name}: {verdict.outcome}; {verdict.reason}. Adaptive is {group.adaptive}, chosen on the "
                f"selection parts. A cache pays in {verdict.n_paying} of {verdict.n_cells} cells; in "
                f"{verdict.n_equivalent} adaptive is within the margins of {BOUND}."
            )
        )
        cautious = min(group.losses_with_copies, key=lambda policy: group.losses_with_copies[policy])
        if cautious != group.adaptive:
            blocks.append(
                Paragraph(
                    f"Copies cost the token copy_event_ns, 0 where a cost model has none: if each cost as much as a "
                    f"miss, {cautious} would be chosen instead of {group.adaptive}."
                )
            )
        blocks.append(Shown(tables.verdicts(group)))
    return blocks


def regimes(decision: Decision) -> list[Block]:
    """The experts that a step of each trace needs over the slots, at a few of the capacities; all are in the JSON."""
    texts = []
    for one in (one for group in decision.groups for one in group.evidences):
        percents = [p for p in one.slots if p in tables.SHORT_PERCENTS] or [p for p in one.slots if p]
        at = [(tables.shown_percent(p), _regime(decision, one, p)) for p in percents]
        text = line(one.stream.steps.unit, at, per_layer=decision.options.per_layer)
        texts += [f"{one.name}: {text}"] if text else []
    return [Heading("Operating regime", 2), Items(texts)] if texts else []


def _regime(decision: Decision, one: Evidence, percent: float) -> Regime | None:
    return one.stream.steps.over(one.slots[percent], per_layer=decision.options.per_layer)


def _regime_rows(decision: Decision, one: Evidence) -> list[dict[str, Any]]:
    found = ((percent, _regime(decision, one, percent)) for percent in one.slots)
    return [
        {
            "trace": one.name,
            "step": one.stream.steps.unit,
            "capacity_percent": percent,
            "step_experts_over_slots": regime.mean,
            "steps_above_slots": regime.above,
        }
        for percent, regime in found
        if regime is not None
    ]


def as_json(decision: Decision) -> str:
    """The verdicts and the cells; differences are fractions, NaN is null."""

    def verdict(one: Verdict, group: Group) -> dict[str, Any]:
        return {**asdict(one), "policy": None if one.outcome == "undecided" else group.policy_of(one.recommended)}

    value = {
        "recommended": decision.recommended,
        "per_layer": decision.options.per_layer,
        "first_tokens": decision.options.first_tokens,
        "seed": decision.seed,
        "operating_regime": [
            row for group in decision.groups for one in group.evidences for row in _regime_rows(decision, one)
        ],
        "groups": [
            {
                "name": group.name,
                "adaptive": group.adaptive,
                "selection": group.losses,
                "selection_with_copies": group.losses_with_copies,
                "verdict": verdict(group.verdict, group),
                "by_trace": {e.name: verdict(group.verdict_of(workload=e.name), group) for e in group.evidences},
                "by_cost": {c.name: verdict(group.verdict_of(cost=c.name), group) for c in decision.options.costs},
                "sensitivity": [{**asdict(one), "verdict": verdict(one.verdict, group)} for one in group.sensitivity],
                "cells": [asdict(cell) | {"winner": cell.winner, "votes": cell.votes} for cell in group.cells],
            }
            for group in decision.groups
        ],
    }
    return json.dumps(_rounded(value)) + "\n"


def _rounded(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Six decimals, far below any interval, keep the file small."""
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    if isinstance(value, float):
        return None if math.isnan(value) else round(value, 6)
    return value


def write(folder: Path, decision: Decision, *, command: str) -> None:
    """All files of the report into an existing folder; `command` is the one that made it."""
    blocks = _blocks(decision, command)
    (folder / "README.md").write_text(as_markdown(TITLE, blocks), encoding="utf-8")
    (folder / "index.html").write_text(as_html(TITLE, blocks), encoding="utf-8")
    (folder / "decision.json").write_text(as_json(decision), encoding="utf-8")
    points = [_point_row(point) for group in decision.groups for point in group.points]
    pq.write_table(pa.Table.from_pylist(points), folder / "points.parquet", compression="zstd")


def _point_row(point: Point) -> dict[str, Any]:
    """Every column of points.parquet; low and high are null where there is no interval."""
    row = {name: value for name, value in vars(point).items() if not isinstance(value, Interval)}
    for name in ("hit_rate", "time_ns"):
        interval = getattr(point, name)
        row |= {name: interval.value}
        row |= {f"{name}_{end}": getattr(interval, end) if interval.known else None for end in ("low", "high")}
    return row


def _blocks(decision: Decision, command: str) -> list[Block]:
    blocks: list[Block] = [
        Heading("Evidence", 2),
        Shown(tables.evidence(decision)),
        *_notes(decision),
        Paragraph("This report was made by"),
        Code(command),
        Paragraph("For your own model and machine:"),
        Code(FOR_YOUR_MODEL),
        Heading("Conclusion", 2),
        *conclusion(decision),
        *regimes(decision),
        Heading("How it is decided", 2),
        Items(_rules(decision)),
    ]
    for group in decision.groups:
        blocks += _group_blocks(group)
    for group in decision.groups:
        for evidence in group.evidences:
            blocks += _trace_blocks(group, evidence)
    return blocks


def _notes(decision: Decision) -> list[Block]:
    texts = [f"Costs {cost.name}: {cost.description}." for cost in decision.options.costs]
    traces: dict[str, list[str]] = {}
    for one in (one for group in decision.groups for one in group.evidences):
        for note in _notes_of(one):
            traces.setdefault(note, []).append(one.name)
    return [Items([*texts, *(f"{', '.join(names)}: {note}." for note, names in traces.items())])]


def _notes_of(one: Evidence) -> list[str]:
    if one.replaced:
        size = (
            f"the experts have another size than those that the costs {', '.join(one.replaced)} were made for. Costs "
            "are not scaled, and copies have the cost model's bytes: the times are those of a model with the cost "
            "model's experts and layers that routes like this trace"
        )
    elif one.sizes:
        return list(one.notes)
    else:
        size = "the size of its experts is not recorded; that of the cost model is taken"
    return [size, *one.notes]


def _rules(decision: Decision) -> list[str]:
    budget = "A budget for each layer" if decision.options.per_layer else "One budget for all layers"
    return [text.format(budget=budget) for text in _RULES]


def _group_blocks(group: Group) -> list[Block]:
    changes = flips(group.cells)
    signs = ", ".join(f"{sign} {name}" for name, sign in tables.SIGNS.items())
    return [
        Heading(f"Winners, {group.name}", 2),
        Shown(tables.winners(group), f"{signs} (no candidate is faster than capacity 0)."),
        Heading(f"Where the conclusion flips, {group.name}", 3),
        Items(changes) if changes else Paragraph("Nowhere: one winner at all capacities above 0."),
        Heading(f"Adaptive ({group.adaptive}) against the static sets, {group.name}", 3),
        Shown(tables.against_bound(group)),
        Heading(f"Choice of the adaptive policy, {group.name}", 3),
        Shown(
            tables.candidates(group),
            "Mean loss of time on the selection parts against the fastest of them. The last column, which decides "
            "nothing, is the worst case for copies: each takes as much of its token's time as a miss.",
        ),
        Heading(f"Sensitivity to costs, {group.name}", 3),
        Shown(
            tables.sensitivity(group),
            "The verdict with one cost halved or doubled, at 5, 10, 20, 40 and 60 % of the experts.",
        ),
    ]


def _trace_blocks(group: Group, one: Evidence) -> list[Block]:
    from pyanalysis.report import plots  # noqa: PLC0415 - matplotlib, only if a report is written

    blocks: list[Block] = [Heading(one.name, 2)]
    own = [point for point in group.points if point.workload == one.name]
    costs = list(one.costs)
    every = list(dict.fromkeys(point.policy for point in own))
    key = tables.key_policies(group.adaptive)
    x_label = "capacity (% of the experts)"
    for place, split in enumerate(one.splits):
        part = [point for point in own if point.split == split.name]
        at = f"held-out {split.name}"
        rates = [point for point in part if point.cost == costs[0]]
        blocks += [
            Heading(f"Hit rate, {at}", 3),
            Drawing(plots.lines(tables.curves(rates, key, "hit_rate"), x_label, "hit rate (%)", marker="")),
            Shown(tables.by_capacity("hit_rate", rates, key, "hit_rate"), f"Copies timed by {costs[0]}.", folded=True),
            Shown(tables.targets(rates, every), "Capacity needed for a hit rate."),
        ]
        for cost in costs:
            times = [point for point in part if point.cost == cost]
            blocks += [
                Heading(f"Time per token (ms), {at}, {cost}", 3),
                Drawing(plots.lines(tables.curves(times, key, "time_ns"), x_label, "time per token (ms)", marker="")),
                Shown(tables.by_capacity("time", times, key, "time_ns"), folded=True),
            ]
            if place == 0:  # the copies of the other split are nearly the same
                caption = "Copies per decoded token, those for prompts included, and how many of them are late."
                blocks.append(Shown(tables.copies(times, every), caption))
    split_name = one.splits[0].name
    blocks += [
        Heading(f"Frequencies of use, held-out {split_name}", 3),
        Drawing(
            plots.lines(_cumulative(one, split_name), "experts of a layer (%)", "share of the accesses (%)", marker="")
        ),
        Shown(tables.frequencies(one, split_name)),
        Heading(f"Hit rate of each layer, held-out {split_name}, {costs[0]}", 3),
        Shown(tables.layers(one, group, split_name, costs[0]), folded=True),
    ]
    return blocks


def _cumulative(one: Evidence, split: str) -> dict[str, list[tuple[float, float]]]:
    """Share of accesses of the most used experts of a layer, mean over layers, at every per cent of the experts."""
    grid = np.linspace(0, 1, 51)
    lines = []
    for share in tables.sorted_shares(one, split):
        places = np.linspace(0, 1, len(share) + 1)
        lines.append(np.interp(grid, places, np.concatenate([[0], np.cumsum(share)])))
    mean = np.mean(lines, axis=0)
    return {"mean of the layers": [(100 * float(x), 100 * float(y)) for x, y in zip(grid, mean, strict=True)]}
