"""moecache study replay-semantics: how much per-access replay changes hit rates (arXiv 2608.07911)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ggml_moecache import _native
from pyanalysis.report.plots import lines
from pyanalysis.simulation import EventStream, sweep
from pyanalysis.studies.findings import Findings

if TYPE_CHECKING:
    from pyanalysis.studies.registry import Request
    from pyanalysis.traces import Trace

POLICIES = (
    "lru",
    "cumulative-lfu",
    "cumulative-lfu:tie=recency",
    _native.default_policy,
    "lfru:weight=64",
    "random",
    "belady",
)
BATCHES = (1, 8, 32)


def run(request: Request) -> Findings:
    """Both ways of replaying, for the trace as it is and for its decoded tokens taken in batches."""
    findings = Findings("moecache study replay-semantics")
    findings.say(
        "Event-atomic: all experts of an event are looked up in what the cache held before it, which is what a runtime "
        "can do. Per access: each expert by itself, after the decisions of those before it in the event. 'change': "
        "of the hit rate, relative, per access against event-atomic; above 0 per-access replay flatters the policy. "
        "Rows 'batches of n' take the decoded tokens as batches of n tokens of a request, each one event per layer."
    )
    for name, trace in request.traces:
        rows: list[list[Any]] = []
        for batch in BATCHES:
            request.progress(f"replay-semantics: {name}: batches of {batch}")
            rows += _compared(_batched(trace, batch), batch, request)
        findings.heading(name)
        header = ["tokens", "capacity %", "policy", "event-atomic", "per access", "change"]
        findings.table("semantics", header, rows, trace=name)
        curves: dict[str, list[tuple[float, float]]] = {}
        for tokens, percent, policy, atomic, access, _ in rows:
            if policy in ("lru", "cumulative-lfu"):
                curves.setdefault(f"{policy}, {tokens}, event-atomic", []).append((percent, 100 * atomic))
                curves.setdefault(f"{policy}, {tokens}, per access", []).append((percent, 100 * access))
        findings.draw(lines(curves, "slots (% of the experts)", "hit rate (%)"))
    return findings


def _batched(trace: Trace, batch: int) -> Trace:
    """The decoded tokens alone, for batches of several as prompts whose ubatches are not recorded."""
    from pyanalysis.decide.parts import only_events  # noqa: PLC0415 - a cycle otherwise

    decoded = only_events(trace, trace.phase == 1)
    if batch == 1:
        return decoded
    return replace(decoded, phase=np.zeros_like(decoded.phase), batch=np.full_like(decoded.batch, -1))


def _compared(trace: Trace, batch: int, request: Request) -> list[list[Any]]:
    capacities = [f"{percent:g}%" for percent in request.percents]
    rates = {}
    for mode in ("event-atomic", "per-access"):
        stream = EventStream.of(trace, mode=mode, batch_size=batch)
        found = sweep(
            stream, list(POLICIES), capacities, per_layer=request.per_layer, victim_agreement=False, seed=request.seed
        )
        rates[mode] = [(one.policy, one.hit_rate) for one in found]
    labels = [(percent, policy) for policy in POLICIES for percent in request.percents]
    return [
        [
            f"batches of {batch}" if batch > 1 else "decoding",
            percent,
            atomic[0],
            atomic[1],
            access[1],
            _change(atomic[1], access[1]),
        ]
        for (percent, _), atomic, access in zip(labels, rates["event-atomic"], rates["per-access"], strict=True)
    ]


def _change(one: float, other: float) -> float | None:
    return other / one - 1 if one else None
