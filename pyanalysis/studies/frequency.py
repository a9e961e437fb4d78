"""moecache study frequency: how uneven the uses are, how they drift, how much history a ranking needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyanalysis.report.plots import lines
from pyanalysis.simulation import EventStream, simulate
from pyanalysis.studies.estimators.concentration import entropy_bits, experts_to_cover, jensen_shannon_bits
from pyanalysis.studies.findings import Findings
from pyanalysis.studies.registry import FREQUENCY_PERCENT
from pyanalysis.studies.replays import decode_hits
from pyanalysis.studies.routing import Routing
from pyanalysis.studies.splits import splits_of
from pyanalysis.traces.summary import gini

if TYPE_CHECKING:
    from pyanalysis.studies.registry import Request
    from pyanalysis.traces import Trace

    Array = np.ndarray[Any, np.dtype[Any]]

SHARES = (0.5, 0.8, 0.9, 0.95)
CAPACITY = f"{FREQUENCY_PERCENT:g}%"
HISTORIES = (
    "request-lfu",
    *(f"decayed-lfu:half-life={n}" for n in (16, 32, 64, 128, 256, 1024, 4096)),
    *(f"windowed-lfu:window={n}" for n in (32, 128, 512, 2048, 8192)),
    "cumulative-lfu",
    "lru",
)
BLOCK = 256
NEAR = 0.01  # a ranking has converged when it hits at most one point less than the best static set
_MOST_REQUESTS = 200


def run(request: Request) -> Findings:
    """Concentration, drift and history of every trace."""
    findings = Findings("moecache study frequency")
    routings = [Routing.of(trace, name) for name, trace in request.traces]
    generator = np.random.default_rng(request.seed)
    request.progress("frequency: concentration")
    _concentration(findings, routings)
    request.progress("frequency: drift")
    _drift(findings, routings, generator)
    _transfer(findings, routings)
    _history(findings, request, routings)
    return findings


def _concentration(findings: Findings, routings: list[Routing]) -> None:
    findings.heading("Concentration")
    findings.say(
        "Of the decoded tokens. 'cover' is the share of a layer's experts that get 50, 80, 90, 95 % of its selections; "
        "entropy in bits, of 'uniform' at most."
    )
    rows: list[list[Any]] = []
    for routing in routings:
        counts = routing.counts()
        curve = np.sort(counts, axis=1)[:, ::-1].cumsum(axis=1) / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        findings.arrays[f"counts/{routing.name}"] = counts
        for layer, own in enumerate(counts):
            n = int(routing.n_experts[layer])
            if not own.any():
                continue
            covered = [experts / n for experts in experts_to_cover(own[:n], SHARES)]
            rows.append(
                [routing.name, routing.layers[layer], gini(own[:n]), entropy_bits(own[:n]), float(np.log2(n)), *covered]
            )
        points = list(
            zip(np.linspace(1 / curve.shape[1], 1, curve.shape[1]) * 100, 100 * curve.mean(axis=0), strict=True)
        )
        findings.draw(lines({routing.name: points}, "experts of a layer (%)", "selections covered, mean of layers (%)"))
    shares = [f"cover {share:.0%}" for share in SHARES]
    findings.table("concentration", ["trace", "layer", "Gini", "entropy", "uniform", *shares], rows)


def _drift(findings: Findings, routings: list[Routing], generator: np.random.Generator) -> None:
    findings.heading("Drift")
    findings.say(
        "Jensen-Shannon divergence of the experts' shares, mean of the layers, in bits (0 alike, 1 nothing in common): "
        "between requests, and between the first and the last third of each request's decoded tokens. 'control': the "
        "same sizes with the tokens in random order (of the trace, of each request); what lies above it is drift."
    )
    rows: list[list[Any]] = []
    for routing in routings:
        requests = np.unique(routing.request)
        tokens = np.arange(routing.n_tokens)
        shuffled = generator.permutation(tokens)
        own = [tokens[routing.request == one] for one in requests]
        other = [shuffled[routing.request == one] for one in requests]
        between, control = _between(routing, own, generator), _between(routing, other, generator)
        thirds = [(part[: len(part) // 3], part[-(len(part) // 3) :]) for part in own if len(part) >= 3]  # noqa: PLR2004
        within = _mean([_divergence(routing, a, b) for a, b in thirds])
        mixed = [generator.permutation(part) for part in own if len(part) >= 3]  # noqa: PLR2004
        mixed_thirds = [(part[: len(part) // 3], part[-(len(part) // 3) :]) for part in mixed]
        within_control = _mean([_divergence(routing, a, b) for a, b in mixed_thirds])
        rows.append([routing.name, len(requests), between, control, within, within_control])
    header = ["trace", "requests", "between requests", "control", "early against late", "control of it"]
    findings.table("drift", header, rows)


def _between(routing: Routing, parts: list[Array], generator: np.random.Generator) -> float | None:
    """Mean over at most 200 seeded pairs of parts; None: there are no two."""
    if len(parts) < 2:  # noqa: PLR2004 - a pair
        return None
    pairs = [generator.choice(len(parts), 2, replace=False) for _ in range(_MOST_REQUESTS)]
    return _mean([_divergence(routing, parts[a], parts[b]) for a, b in pairs])


def _divergence(routing: Routing, one: Array, other: Array) -> float:
    a, b = routing.counts(one), routing.counts(other)
    used = [layer for layer in range(len(a)) if a[layer].any() and b[layer].any()]
    return float(np.mean([jensen_shannon_bits(a[layer], b[layer]) for layer in used])) if used else 0.0


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _transfer(findings: Findings, routings: list[Routing]) -> None:
    findings.heading("What a static set keeps of its hits elsewhere")
    findings.say(
        f"Share of the held-out selections that go to the {CAPACITY} most used experts of each layer, chosen on the "
        "first part, against those of the held-out part itself (hindsight)."
    )
    rows: list[list[Any]] = []
    for routing in routings:
        for split in splits_of(routing):
            fitted, counted = routing.counts(split.fit), routing.counts(split.test)
            rows.append(
                [routing.name, split.held_out, _static(fitted, counted, routing), _static(counted, counted, routing)]
            )
    findings.table("static", ["trace", "held out", "chosen before", "hindsight"], rows)


def _static(ranked_by: Array, counted: Array, routing: Routing) -> float:
    size = np.maximum(1, np.rint(FREQUENCY_PERCENT / 100 * routing.n_experts)).astype(int)
    hits = sum(
        own[np.argsort(-ranks, kind="stable")[:n]].sum() for ranks, own, n in zip(ranked_by, counted, size, strict=True)
    )
    return float(hits / max(counted.sum(), 1))


def _history(findings: Findings, request: Request, routings: list[Routing]) -> None:
    findings.heading("Useful history")
    findings.say(
        f"Hit rate of decoded tokens at {CAPACITY} of each layer's experts, event by event, ideal timing, over the "
        "whole trace: rankings that forget at different speeds, against the best static set known in hindsight and "
        "the optimum. 'selected' was chosen on the first half of each request, 'held-out' is the rest."
    )
    rows: list[list[Any]] = []
    converged: list[list[Any]] = []
    for (name, trace), routing in zip(request.traces, routings, strict=True):
        request.progress(f"frequency: history of {name}")
        stream = EventStream.of(trace)
        policies = [*HISTORIES, "hindsight-static", "belady"]
        by_token = {policy: _hits_by_token(stream, trace, routing, policy) for policy in policies}
        selected, held_out = (splits_of(routing)[0].fit, splits_of(routing)[0].test)
        best = max(HISTORIES, key=lambda policy: _rate(by_token[policy], selected))
        rows += [
            [
                *(name, policy, _rate(hits, np.arange(routing.n_tokens)), _rate(hits, selected), _rate(hits, held_out)),
                "best history" if policy == best else "",
            ]
            for policy, hits in by_token.items()
        ]
        converged += _convergence(findings, name, by_token)
    header = ["trace", "ranking", "hit rate", "selected", "held-out", "note"]
    findings.table("history", header, rows)
    findings.heading("When an adaptive ranking converges", 3)
    findings.say(
        f"First decoded token from which the mean hit rate of all the {BLOCK}-token blocks that follow is at most one "
        "point below that of hindsight static; empty: never."
    )
    findings.table("convergence", ["trace", "ranking", "token", "of tokens"], converged)


def _hits_by_token(stream: EventStream, trace: Trace, routing: Routing, policy: str) -> tuple[Array, Array]:
    result = simulate(stream, policy, CAPACITY, per_layer=True, victim_agreement=False, events=True)
    return decode_hits(stream, trace, routing, result)


def _rate(hits: tuple[Array, Array], tokens: Array) -> float:
    return float(hits[0][tokens].sum() / max(hits[1][tokens].sum(), 1))


def _convergence(findings: Findings, name: str, by_token: dict[str, tuple[Array, Array]]) -> list[list[Any]]:
    rates = {}
    n_tokens = len(by_token["lru"][0])
    blocks = max(1, n_tokens // BLOCK)
    place = np.minimum(np.arange(n_tokens) // BLOCK, blocks - 1)
    for policy in ("cumulative-lfu", "decayed-lfu:half-life=256", "request-lfu", "hindsight-static"):
        hits, asked = by_token[policy]
        rates[policy] = np.bincount(place, hits) / np.bincount(place, asked)
    findings.arrays[f"blocks/{name}"] = np.stack(list(rates.values()))
    points = {policy: [(BLOCK * i, 100 * float(r)) for i, r in enumerate(rate)] for policy, rate in rates.items()}
    findings.draw(lines(points, f"decoded token of {name}", f"hit rate in {BLOCK} tokens (%)", marker=""))
    static = rates.pop("hindsight-static")
    return [[name, policy, converged_at(rate, static), n_tokens] for policy, rate in rates.items()]


def converged_at(rate: Array, static: Array) -> int | None:
    """First token of the first block from which on `rate` is at most NEAR below `static`; None: there is none.

    Both [blocks]; compared are the means from each block to the end.
    """
    from_here = (rate - static)[::-1].cumsum()[::-1] / np.arange(len(rate), 0, -1)
    late = np.flatnonzero(from_here < -NEAR)
    first = 0 if len(late) == 0 else int(late[-1]) + 1
    return first * BLOCK if first < len(rate) else None
