"""moecache study regime: the experts that a step needs against the slots that there are (arXiv 2608.07911)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyanalysis.report.plots import lines
from pyanalysis.simulation import EventStream
from pyanalysis.simulation.capacity import slots_of
from pyanalysis.studies.findings import Findings

if TYPE_CHECKING:
    from pyanalysis.studies.registry import Request
    from pyanalysis.traces import Trace

    Array = np.ndarray[Any, np.dtype[Any]]


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
        by_layer, total, known = union_sizes(trace)
        n_experts = np.array([n for _, _, n, _ in stream.columns])
        unions.append(
            [
                name,
                "ubatch" if known else "token",
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


def notes(request: Request) -> list[str]:
    """One line for each trace: what a step uses over the slots, with the request's budgets."""
    found = []
    for name, trace in request.traces:
        stream = EventStream.of(trace)
        by_layer, total, known = union_sizes(trace)
        shares = []
        for percent in request.percents:
            slots = np.array(slots_of(stream, f"{percent:g}%", per_layer=request.per_layer))
            share = by_layer / slots if request.per_layer else total / slots.sum()
            above = f" (above 1 in {(share > 1).mean():.1%})" if (share > 1).any() else ""
            shares.append(f"{percent:g} %: {share.mean():.2f}{above}")
        step = "ubatch" if known else "decoded token"
        budget = "a layer" if request.per_layer else "all layers"
        found.append(f"{name}: different experts that a {step} uses over the slots of {budget}, at {', '.join(shares)}")
    return found


def union_sizes(trace: Trace) -> tuple[Array, Array, bool]:
    """(different experts of each step and layer int64[s, L], of each step int64[s], whether ubatches are known)."""
    column, layers = trace.columns
    decoded = np.flatnonzero(trace.phase == 1)
    known = bool((trace.batch >= 0).all())
    step = trace.batch[decoded] if known else trace.tokens.of_event[decoded]
    step = np.unique(step, return_inverse=True)[1]
    ids = trace.ids[decoded].astype(np.int64)
    n_experts = int(ids.max(initial=0)) + 1
    there = ids >= 0
    place = step * len(layers) + column[decoded]
    pairs = np.unique((place[:, None] * n_experts + ids)[there])
    n_steps = int(step.max(initial=-1)) + 1
    by_layer = np.bincount(pairs // n_experts, minlength=n_steps * len(layers)).reshape(n_steps, len(layers))
    return by_layer, by_layer.sum(axis=1), known
