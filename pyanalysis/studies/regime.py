"""moecache study regime: the experts that a step needs against the slots that there are (arXiv 2608.07911)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pyanalysis.report.plots import lines
from pyanalysis.simulation import EventStream
from pyanalysis.simulation.capacity import slots_of
from pyanalysis.simulation.regime import Steps, line
from pyanalysis.studies.findings import Findings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from pyanalysis.studies.registry import Request


def run(request: Request) -> Findings:
    """Unions of experts over the steps of each trace, over its slots."""
    findings = Findings("moecache study regime")
    findings.say(
        "A step is one decoding ubatch where the trace tells them, else one decoded token. Its union: the different "
        "experts that all its tokens ask for, of a layer, and of all layers together. Divided by the slots of a layer "
        "(or of all): above 1 no policy can hold what a single step needs, and policies hardly differ; far below 1 "
        "there is room for history."
    )
    unions: list[list[Any]] = []
    ratios: list[list[Any]] = []
    for name, trace in request.traces:
        request.progress(f"regime: {name}")
        stream = EventStream.of(trace)
        steps = Steps.of(trace)
        by_layer, total = steps.by_layer, steps.total
        n_experts = np.array([n for _, _, n, _ in stream.columns])
        unions.append(
            [
                name,
                steps.unit,
                len(total),
                by_layer.mean(),
                np.percentile(by_layer, 95),
                by_layer.max(),
                total.mean(),
            ]
        )
        for percent in request.percents:
            layer_slots = np.array(slots_of(stream, f"{percent:g}%", per_layer=True))
            slots = sum(slots_of(stream, f"{percent:g}%", per_layer=False))
            share = by_layer / layer_slots
            ratios.append(
                [
                    name,
                    percent,
                    int(slots),
                    share.mean(),
                    (share > 1).mean(),
                    (total / slots).mean(),
                    (total > slots).mean(),
                ]
            )
        findings.arrays[f"union_of_layers/{name}"] = by_layer
        findings.arrays[f"experts/{name}"] = n_experts
    curves = {name: [(row[1], row[3]) for row in ratios if row[0] == name] for name, _ in request.traces}
    findings.draw(lines(curves, "slots of a layer (% of its experts)", "union of a step over the slots, mean"))
    header = ["trace", "step", "steps", "experts of a layer", "95 %", "most", "experts of all layers"]
    findings.table("unions", header, unions)
    header = [
        "trace",
        "capacity %",
        "slots of all layers",
        "union over slots, a layer",
        "steps above 1",
        "all layers",
        "above 1",
    ]
    findings.table("regime", header, ratios)
    return findings


def add(
    findings: Findings, request: Request, percents: Sequence[float], *, per_layer: bool
) -> list[dict[str, str | float | None]]:
    """Say for each trace what a step uses over the slots, at these capacities; returns the same as records for JSON.

    per_layer  whether the capacities are of each layer
    """
    texts: list[str] = []
    records: list[dict[str, str | float | None]] = []
    for name, trace in request.traces:
        stream, steps = EventStream.of(trace), Steps.of(trace)
        at = [(percent, steps.over(_slots(stream, percent, per_layer), per_layer=per_layer)) for percent in percents]
        text = line(steps.unit, [(f"{percent:g} %", regime) for percent, regime in at], per_layer=per_layer)
        texts.append(f"{name}: {text or 'no token was decoded'}")
        records += [
            {
                "trace": name,
                "step": steps.unit,
                "budget": "a layer" if per_layer else "all layers",
                "capacity_percent": percent,
                "step_experts_over_slots": regime.mean if regime else None,
                "steps_above_slots": regime.above if regime else None,
            }
            for percent, regime in at
        ]
    findings.heading("Operating regime")
    findings.notes(texts)
    return records


def _slots(stream: EventStream, percent: float, per_layer: bool) -> tuple[int, ...]:
    """Where the number of experts is not known the largest id is taken for the last, as the studies' own tables do."""
    if per_layer and not stream.experts_known:
        return tuple(max(1, round(percent / 100 * n)) for _, _, n, _ in stream.columns)
    return slots_of(stream, f"{percent:g}%", per_layer=per_layer)
