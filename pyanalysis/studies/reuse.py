"""moecache study reuse: runs, reuse distances, what LRU and LFU can reach, router weight against reuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ggml_moecache import _native
from pyanalysis.report.plots import lines
from pyanalysis.simulation import EventStream, sweep
from pyanalysis.studies.estimators.repetition import gaps, run_lengths, spearman, uses_ahead
from pyanalysis.studies.findings import Findings
from pyanalysis.studies.registry import REUSE_PERCENTS
from pyanalysis.studies.routing import Routing

if TYPE_CHECKING:
    from pyanalysis.studies.registry import Request

    Array = np.ndarray[Any, np.dtype[Any]]

WINDOWS = (1, 2, 4, 8, 16, 32, 64)
POLICIES = ("lru", "cumulative-lfu", _native.default_policy, "belady", "hindsight-static")
_QUARTILES = (50, 90, 99)


def run(request: Request) -> Findings:
    """Runs and gaps by layer, distances by capacity, rank correlations by window."""
    findings = Findings("moecache study reuse")
    routings = [Routing.of(trace, name) for name, trace in request.traces]
    request.progress("reuse: runs and gaps")
    _runs(findings, routings, np.random.default_rng(request.seed))
    for name, trace in request.traces:
        request.progress(f"reuse: distances of {name}")
        _distances(findings, name, EventStream.of(trace))
    for routing in routings:
        request.progress(f"reuse: router weights of {routing.name}")
        _weights(findings, routing)
    return findings


def _runs(findings: Findings, routings: list[Routing], generator: np.random.Generator) -> None:
    findings.heading("Runs and gaps")
    findings.say(
        "A run: tokens in a row of one request that use an expert. 'shuffled': the tokens of each request in random "
        "order, which keeps how often each expert is used. 'gap': tokens from a use to the next one in the request."
    )
    rows: list[list[Any]] = []
    for routing in routings:
        mixed = _shuffled_within(routing, generator)
        for layer in range(len(routing.layers)):
            hot, other = _hot(routing, layer), _hot(routing, layer)[mixed]
            runs, control = run_lengths(hot, routing.begins), run_lengths(other, routing.begins)
            between = gaps(hot, routing.begins)
            if len(runs) == 0:
                continue
            at = np.percentile(between, _QUARTILES).tolist() if len(between) else [None] * len(_QUARTILES)
            longest = int(runs.max())
            rows.append([routing.name, routing.layers[layer], runs.mean(), control.mean(), longest, *at])
            findings.arrays[f"runs/{routing.name}/{routing.layers[layer]}"] = np.bincount(runs)
    header = ["trace", "layer", "mean run", "shuffled", "longest", *(f"gap {q} %" for q in _QUARTILES)]
    findings.table("runs", header, rows)


def _hot(routing: Routing, layer: int) -> Array:
    ids = routing.ids[:, layer].astype(np.int64)
    hot = np.zeros((len(ids), routing.most_experts + 1), dtype=bool)
    np.put_along_axis(hot, np.where(ids < 0, routing.most_experts, ids), 1, axis=1)
    return hot[:, :-1]


def _shuffled_within(routing: Routing, generator: np.random.Generator) -> Array:
    """int64[T]: the tokens, those of each request among themselves in random order."""
    order: Array = np.lexsort((generator.random(routing.n_tokens), routing.request))
    return order


def _distances(findings: Findings, name: str, stream: EventStream) -> None:
    most = max(n for _, _, n, _ in stream.columns)
    results = sweep(stream, list(POLICIES), list(range(most + 1)), per_layer=True, victim_agreement=False)
    curves = {p: np.array([r.hits / max(r.accesses, 1) for r in results if r.policy == p]) for p in POLICIES}
    # An access at distance d hits with more than d slots, and with no fewer: the curve's steps are the distances.
    hits = np.array([r.hits for r in results if r.policy == "lru"])
    accesses = results[0].accesses
    distance = np.append(np.diff(hits), accesses - hits[-1])
    findings.arrays[f"reuse_distance/{name}"] = distance
    for policy, curve in curves.items():
        findings.arrays[f"hit_rate/{name}/{policy}"] = curve
    findings.heading(f"Reuse distances of {name}")
    findings.say(
        "Event-atomic: how many other experts of the layer were used more recently when an event asks for one, prompts "
        "included. LRU with C slots per layer hits exactly the accesses at a distance below C. 'first uses' are those "
        "that no cache without foresight can hit; hindsight-static holds its experts from the start and may lie above "
        "belady, which begins empty."
    )
    share = 100 * distance[:-1] / max(accesses, 1)
    findings.draw(lines({"distances": list(enumerate(share))}, "distance (experts)", "accesses (%)", marker=""))
    percent = 100 * np.arange(most + 1) / most
    points = {p: list(zip(percent, 100 * curve, strict=True)) for p, curve in curves.items()}
    findings.draw(lines(points, "slots of a layer (% of its experts)", "hit rate (%)", marker=""))
    rows = [
        [
            f"{percent:g}%",
            _slots(percent, most),
            *(curves[p][_slots(percent, most)] for p in POLICIES),
        ]
        for percent in REUSE_PERCENTS
    ]
    cold = [["first uses", None, accesses - hits[-1], *[None] * (len(POLICIES) - 1)]]
    findings.table("reachable", ["capacity", "slots", *POLICIES], [*rows, *cold], trace=name)


def _slots(percent: float, most: int) -> int:
    return int(max(1, np.rint(percent / 100 * most)))


def _weights(findings: Findings, routing: Routing) -> None:
    findings.heading(f"Router weight against reuse: {routing.name}")
    kind = "router weight" if routing.weights is not None else "place in the top-k"
    if routing.weights is None and routing.rank_is_lost:
        findings.say("The trace has neither router weights nor the order of the top-k: nothing to relate to reuse.")
        return
    findings.say(
        f"Spearman correlation of the {kind} with the uses of that expert in the next n tokens of the request, by "
        "layer; tokens with fewer than n tokens left in their request are left out. 'given use': the mean over the "
        "experts of the correlation within each expert's own uses, so that popular experts, which have both, do not "
        "make it. " + ("" if routing.weights is not None else "Without weights the first place counts as the highest.")
    )
    rows: list[list[Any]] = []
    for layer in range(len(routing.layers)):
        hot = _hot(routing, layer)
        pooled, within = zip(*(_correlations(routing, layer, hot, window) for window in WINDOWS), strict=True)
        rows.append([routing.layers[layer], "all", *pooled])
        rows.append([routing.layers[layer], "given use", *within])
    header = ["layer", "correlation", *(f"n={n}" for n in WINDOWS)]
    findings.table("weights", header, rows, trace=routing.name)


def _correlations(routing: Routing, layer: int, hot: Array, window: int) -> tuple[float | None, float | None]:
    ahead, whole = uses_ahead(hot, routing.begins, window)
    ids = routing.ids[whole, layer].astype(np.int64)
    used = ids >= 0
    if routing.weights is not None:
        weight = routing.weights[whole, layer]
        used &= ~np.isnan(weight)
    else:
        weight = np.broadcast_to(-np.arange(ids.shape[1]), ids.shape)
    token, place = np.nonzero(used)
    if len(token) < 2:  # noqa: PLR2004 - nothing to correlate
        return None, None
    expert, w = ids[token, place], weight[token, place].astype(np.float64)
    n = ahead[whole][token, expert]
    own = [spearman(w[expert == one], n[expert == one]) for one in np.unique(expert)]
    own = [value for value in own if not np.isnan(value)]
    total = spearman(w, n)
    return None if np.isnan(total) else total, float(np.mean(own)) if own else None
