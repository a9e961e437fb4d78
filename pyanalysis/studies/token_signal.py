"""moecache study token-signal: the token that a layer's hidden state would give, and the next layer's experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ggml_moecache.errors import ConfigError
from pyanalysis.report.plots import lines
from pyanalysis.studies.estimators.information import conditional_information, mutual_information
from pyanalysis.studies.estimators.log_loss import log_loss
from pyanalysis.studies.findings import Findings
from pyanalysis.studies.routing import Routing
from pyanalysis.studies.splits import all_splits

if TYPE_CHECKING:
    from pyanalysis.studies.registry import Request
    from pyanalysis.studies.splits import Split

    Array = np.ndarray[Any, np.dtype[Any]]

FEWEST = 50  # samples of a layer; with fewer nothing is estimated
# Samples of a layer below which a result is marked as that of a small sample. The 95 % interval of a share, of which
# all estimates here are made, is up to 0.98 / sqrt(n) wide to each side: 14 points with 50 samples, 3.1 with 1,000.
SMALL = 1000
_WHY = (
    f"Fewer than {SMALL:,} are a small sample: a share of it is known to {98 / SMALL**0.5:.1f} points at best (95 %, "
    "0.98 / sqrt(n)), so small differences may be chance."
)


def run(request: Request) -> Findings:
    """Mutual and conditional mutual information, and held-out log-loss, by layer. Needs traces with top1 tokens."""
    findings = Findings("moecache study token-signal")
    findings.say(
        "token: the one that the final norm and the LM head give from the hidden state behind layer n - 1 (top1_token "
        "of the trace, on the tokens that were sampled). expert: the first of layer n - 1. Both are known before layer "
        "n routes; what they say about the first expert of layer n, in bits. 'shuffled': the same with the token "
        "permuted (for the conditional one among samples with the same expert), mean of 5: all bias."
    )
    routings = [Routing.of(trace, name) for name, trace in request.traces]
    for routing in routings:
        _check(routing)
        request.progress(f"token-signal: {routing.name}")
        _information(findings, routing, np.random.default_rng(request.seed))
    splits, notes = all_splits(routings)
    findings.heading("What it adds on held-out parts")
    findings.say(
        "Log-loss in bits per first expert, mean of the layers, Witten and Bell's interpolation. 'token adds': the "
        "loss with the expert alone less that with both, the token as the further context; above 0 the token helps."
    )
    findings.notes(notes)
    rows = []
    small = []
    for split in splits:
        fitted, tested = least_samples(split)
        rows.append([split.name, fitted, *losses(split), _mark(min(fitted, tested))])
        if 0 < min(fitted, tested) < SMALL:
            small.append(f"{split.name}: a layer has {fitted:,} samples to fit on and {tested:,} to judge by. {_WHY}")
    findings.notes(small)
    header = ["held out", "fitted, a layer", "samples", "popularity", "token", "expert", "expert and token"]
    findings.table("log_loss", [*header, "token adds", "sample"], rows)
    return findings


def _mark(n: int) -> str:
    return "none" if n == 0 else "small" if n < SMALL else ""


def least_samples(split: Split) -> tuple[int, int]:
    """(to fit on, to judge by): those of the layer with the fewest, of the layers that are judged; 0 without one."""
    pairs = []
    for layer in range(1, len(split.test_on.layers)):
        fitted, tested = samples(split.fit_on, split.fit, layer)[2], samples(split.test_on, split.test, layer)[2]
        if len(fitted) >= FEWEST and len(tested):
            pairs.append((len(fitted), len(tested)))
    return (min(n for n, _ in pairs), min(n for _, n in pairs)) if pairs else (0, 0)


def _check(routing: Routing) -> None:
    if routing.top1 is None or not (routing.top1 >= 0).any():
        raise ConfigError(
            f"{routing.name}: no token has a top1_token; record some with moecache run --log DIR --top1-every N"
        )
    if routing.rank_is_lost:
        raise ConfigError(f"{routing.name}: the order of the top-k was not kept, so there is no first expert")


def samples(routing: Routing, tokens: Array, layer: int) -> tuple[Array, Array, Array]:
    """(token and first expert of layer - 1, first expert of `layer`), int64[n] each, of the `tokens` that have all."""
    top1 = routing.top1
    if top1 is None:
        raise ConfigError(f"{routing.name}: no top1 tokens")
    token = top1[tokens, layer - 1]
    expert, own = routing.ids[tokens, layer - 1, 0], routing.ids[tokens, layer, 0]
    there = (token >= 0) & (expert >= 0) & (own >= 0)
    return token[there].astype(np.int64), expert[there].astype(np.int64), own[there].astype(np.int64)


def _information(findings: Findings, routing: Routing, generator: np.random.Generator) -> None:
    findings.heading(routing.name)
    rows: list[list[Any]] = []
    curves: dict[str, list[tuple[float, float]]] = {"token": [], "expert": [], "token given expert": []}
    final = routing.top1[:, -1] if routing.top1 is not None else None
    for layer in range(1, len(routing.layers)):
        token, expert, own = samples(routing, np.arange(routing.n_tokens), layer)
        if len(own) < FEWEST:
            continue
        of_token = mutual_information(token, own, generator)
        of_expert = mutual_information(expert, own, generator)
        more = conditional_information(token, own, expert, generator)
        rows.append(
            [
                *(routing.layers[layer], len(own), len(np.unique(token)), _agreement(routing, final, layer - 1)),
                *(
                    of_token.plug_in,
                    of_token.shuffled,
                    of_expert.plug_in,
                    of_expert.shuffled,
                    more.plug_in,
                    more.shuffled,
                ),
                _mark(len(own)),
            ]
        )
        for name, found in zip(curves, (of_token, of_expert, more), strict=True):
            curves[name].append((layer, max(0.0, found.above_control)))
    if not rows:
        findings.say(
            f"Fewer than {FEWEST} sampled tokens in every layer: nothing is estimated. Longer texts, more runs "
            "(moecache trace merge) or a smaller --top1-every give more."
        )
        return
    fewest = min(row[1] for row in rows)
    if fewest < SMALL:
        n_small = sum(row[1] < SMALL for row in rows)
        findings.notes([f"{n_small} of {len(rows)} layers have a small sample, the smallest {fewest:,} tokens. {_WHY}"])
    header = [
        *("layer", "samples", "different tokens", "token is final", "I(token)", "I(token), shuffled", "I(expert)"),
        *("I(expert), shuffled", "I(token | expert)", "I(token | expert), shuffled"),
        "sample",
    ]
    findings.table("information", header, rows, trace=routing.name)
    findings.draw(lines(curves, "layer (place)", "bits above the shuffled control"))


def _agreement(routing: Routing, final: Array | None, layer: int) -> float | None:
    """Share of the sampled tokens whose token is that of the last layer."""
    if final is None or routing.top1 is None:
        return None
    both = (routing.top1[:, layer] >= 0) & (final >= 0)
    return float((routing.top1[both, layer] == final[both]).mean()) if both.any() else None


def losses(split: Split) -> list[float | None]:
    """[samples, log-loss of popularity, given the token, the expert, both, what the token adds]."""
    orders: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (1, 0))
    total = np.zeros(len(orders))
    n = 0
    for layer in range(1, len(split.test_on.layers)):
        fitted, tested = samples(split.fit_on, split.fit, layer), samples(split.test_on, split.test, layer)
        if len(fitted[2]) < FEWEST or len(tested[2]) == 0:
            continue
        n += len(tested[2])
        n_experts = int(split.test_on.n_experts[layer])
        for i, order in enumerate(orders):
            found = log_loss([fitted[c] for c in order], fitted[2], [tested[c] for c in order], tested[2], n_experts)
            total[i] += found.sum()
    if n == 0:
        return [0, *[None] * (len(orders) + 1)]
    total /= n
    return [n, *total.tolist(), float(total[2] - total[3])]
