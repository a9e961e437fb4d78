"""What `moecache trace show` says of a trace: sizes, and per layer popularity and locality of the experts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pyanalysis.traces import cache_use
from pyanalysis.traces import metadata as run_json

if TYPE_CHECKING:
    from pyanalysis.simulation.logged import LoggedRegime
    from pyanalysis.traces.cache_use import CacheUse
    from pyanalysis.traces.trace import Array, Trace

_COMPARED_AT_ONCE = 1 << 18  # events; bounds the memory of the comparison with the token before


@dataclass(frozen=True)
class LayerSummary:
    """One layer and family. `top_experts`: (expert, share of the layer's routed rows), most used first.

    gini     of the experts' counts, 0: all alike, (n_experts - 1) / n_experts: one takes all; None: no events
    overlap  share of a token's experts that the token before it in its request also used; None: no such pair
    """

    layer: int
    family: str
    n_events: int
    n_experts: int
    n_experts_known: bool  # False: run.json does not say, the largest id seen is taken for the last
    n_experts_used: int
    top_k: int  # the largest
    gini: float | None
    overlap: float | None
    top_experts: list[tuple[int, float]]


@dataclass(frozen=True)
class Summary:
    file: str
    run_id: str
    context_id: int
    model: dict[str, Any]
    capacity: str | None
    policy: str | None
    n_tokens: int
    n_prefill_tokens: int
    n_decode_tokens: int
    n_batches: int | None  # None: ubatches are not recorded
    n_requests: int
    n_events: int
    n_lost_events: int
    complete: bool
    gini: float | None  # mean over layers
    overlap: float | None  # over all events that have a token before
    n_top1_events: int | None  # events with a top1_token; None: the log has no such column
    timings: bool  # False: the run gives none
    cache: CacheUse | None  # None: no event was looked up in a cache
    regime: LoggedRegime | None  # of that cache, as far as the log tells it
    layers: list[LayerSummary]
    notes: list[str]

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "cache": None if self.cache is None else self.cache.as_json(),
            "regime": None if self.regime is None else self.regime.as_json(),
        }


def gini(counts: Array) -> float:
    """Gini coefficient of non-negative `counts` [n], not all 0: mean absolute difference over twice the mean."""
    ordered = np.sort(counts).astype(np.float64)
    n = len(ordered)
    return float((2 * np.arange(1, n + 1) - n - 1) @ ordered / (n * ordered.sum()))


def overlaps(trace: Trace) -> Array:
    """float64[n]: share of each event's ids that the same layer's event for the token before in its request has.

    The token before is the one computed before it; NaN: the token is the first of its request in that layer.
    """
    column, _ = trace.columns
    order = np.lexsort((trace.tokens.of_event, column, trace.request))
    follows = np.zeros(trace.n_events, dtype=bool)
    follows[1:] = (column[order][1:] == column[order][:-1]) & (trace.request[order][1:] == trace.request[order][:-1])
    result = np.full(trace.n_events, np.nan)
    for begin in range(0, trace.n_events, _COMPARED_AT_ONCE):
        place = np.arange(begin, min(begin + _COMPARED_AT_ONCE, trace.n_events))
        place = place[follows[place]]
        ids, before = trace.ids[order[place]], trace.ids[order[place - 1]]
        shared = (ids[:, :, None] == before[:, None, :]).any(axis=2) & (ids >= 0)
        result[order[place]] = shared.sum(axis=1) / (ids >= 0).sum(axis=1)
    return result


def summarize(
    trace: Trace, n_top: int = 5, cache: CacheUse | None = None, regime: LoggedRegime | None = None
) -> Summary:
    """The summary of a checked trace, with the `n_top` most used experts per layer; `cache`, `regime` go into it."""
    tokens = trace.tokens
    overlap = overlaps(trace)
    column, columns = trace.columns
    order = np.argsort(column, kind="stable")
    bounds = np.searchsorted(column[order], np.arange(len(columns) + 1))
    layers = [
        _layer(trace, (layer, trace.families[family]), order[begin:end], overlap, n_top)
        for (layer, family), begin, end in zip(columns.tolist(), bounds[:-1], bounds[1:], strict=True)
    ]
    batches_known = trace.n_events == 0 or int(trace.batch.min()) >= 0
    ginis = [layer.gini for layer in layers if layer.gini is not None]
    return Summary(
        file=str(trace.path),
        run_id=trace.run_id,
        context_id=trace.context_id,
        model=trace.model,
        capacity=trace.metadata.get("capacity"),
        policy=trace.metadata.get("policy"),
        n_tokens=len(tokens),
        n_prefill_tokens=int((tokens.phase == 0).sum()),
        n_decode_tokens=int((tokens.phase == 1).sum()),
        n_batches=len(np.unique(tokens.batch)) if batches_known else None,
        n_requests=len(np.unique(tokens.request)),
        n_events=trace.n_events,
        n_lost_events=trace.n_lost,
        complete=trace.complete,
        gini=float(np.mean(ginis)) if ginis else None,
        overlap=_mean(overlap),
        n_top1_events=None if trace.top1 is None else int((trace.top1 >= 0).sum()),
        timings=run_json.has_timings(trace.metadata),
        cache=cache,
        regime=regime,
        layers=layers,
        notes=list(trace.notes),
    )


def _mean(values: Array) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else None


def _layer(trace: Trace, column: tuple[int, str], events: Array, overlap: Array, n_top: int) -> LayerSummary:
    layer, family = column
    ids = trace.ids[events]
    ids = ids[ids >= 0]
    known = trace.n_experts(layer, family)
    counts = np.bincount(ids, minlength=known or 0)
    top = np.argsort(-counts, kind="stable")[:n_top]  # a tie goes to the lower id
    return LayerSummary(
        layer=layer,
        family=family,
        n_events=len(events),
        n_experts=len(counts),
        n_experts_known=known is not None,
        n_experts_used=int((counts > 0).sum()),
        top_k=int((trace.ids[events] >= 0).sum(axis=1).max()),
        gini=gini(counts),
        overlap=_mean(overlap[events]),
        top_experts=[(int(i), float(counts[i] / counts.sum())) for i in top if counts[i] > 0],
    )


# --- text -----------------------------------------------------------------------------------------------------------


def as_text(summary: Summary) -> str:
    """The summary as lines for a terminal; numbers stand under each other."""
    model = summary.model
    what = [model["file"] or model["architecture"] or "unknown model", model["quantization"]]
    policy = f"policy {summary.policy}" if summary.policy else "no cache policy"
    batches = "ubatches not recorded" if summary.n_batches is None else _count(summary.n_batches, "ubatch", "ubatches")
    phases = f"{summary.n_prefill_tokens:,} prefill, {summary.n_decode_tokens:,} decode"
    gini_text = f"Gini {_fraction(summary.gini)} on average"
    lines = [
        f"log       {summary.file} (run {summary.run_id}, context {summary.context_id})",
        f"model     {', '.join(filter(None, what))}; capacity {summary.capacity or 'unknown'}, {policy}",
        f"tokens    {summary.n_tokens:,} ({phases}) in {_count(summary.n_requests, 'request')}, {batches}",
        f"events    {summary.n_events:,} of {_count(len(summary.layers), 'layer')}, {_state(summary)}",
        f"locality  {_percent(summary.overlap)} of a token's experts were used by the token before; {gini_text}",
        *([] if summary.n_top1_events is None else [f"top1      recorded on {_count(summary.n_top1_events, 'event')}"]),
        *([] if summary.timings else ["timings   none: the run's graphs were cut to record top1_token"]),
        *([] if summary.cache is None else cache_use.as_lines(summary.cache)),
        *([] if summary.regime is None else [f"regime    {summary.regime}"]),
        *(f"note      {note}" for note in summary.notes),
    ]
    return "\n".join([*lines, "", *_table(summary)])


def _table(summary: Summary) -> list[str]:
    header = ["layer", "family", "events", "hits", "experts used", "Gini", "overlap", "top experts (share of rows)"]
    rows = [header]
    by_layer = {} if summary.cache is None else summary.cache.by_layer
    rows += [
        [
            str(layer.layer),
            layer.family,
            f"{layer.n_events:,}",
            _hit_rate(by_layer.get((layer.layer, layer.family))),
            f"{layer.n_experts_used} of {layer.n_experts if layer.n_experts_known else '?'}",
            _fraction(layer.gini),
            _percent(layer.overlap),
            "  ".join(f"{expert} ({share:.1%})" for expert, share in layer.top_experts),
        ]
        for layer in summary.layers
    ]
    if not summary.layers:
        return ["no events"]
    left_out = {"family"} if len({layer.family for layer in summary.layers}) == 1 else set()
    left_out |= {"hits"} if summary.cache is None else set()
    kept = [i for i, name in enumerate(header) if name not in left_out]
    rows = [[row[i] for i in kept] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    last = len(widths) - 1
    return [
        "  ".join(
            cell if i == last else f"{cell:<{width}}" if rows[0][i] == "family" else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _state(summary: Summary) -> str:
    """Whether the log is all of its run: events can be missing in the middle, and at the end."""
    lost = _count(summary.n_lost_events, "event")
    if summary.complete:
        return f"closed properly, {lost} LOST" if summary.n_lost_events else "no event lost, complete"
    lost = f"{lost} LOST" if summary.n_lost_events else "no event lost"
    return f"{lost} up to the last line, NOT complete: losses after it are unknown"


def _count(n: int, one: str, many: str | None = None) -> str:
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def _hit_rate(counts: tuple[int, int] | None) -> str:
    return "-" if counts is None else f"{counts[1] / counts[0]:.1%}"


def _fraction(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
