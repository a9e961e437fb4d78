"""moecache study transitions: what the layer or the token before says about a token's experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyanalysis.report.plots import lines
from pyanalysis.studies.estimators.information import conditional_information, mutual_information
from pyanalysis.studies.estimators.log_loss import log_loss
from pyanalysis.studies.estimators.transition import conditional, pair_counts
from pyanalysis.studies.findings import Findings
from pyanalysis.studies.plots import matrices
from pyanalysis.studies.predictors.base import before, ids_of, layer_before
from pyanalysis.studies.routing import Routing
from pyanalysis.studies.splits import all_splits

if TYPE_CHECKING:
    from pyanalysis.studies.registry import Request
    from pyanalysis.studies.splits import Split

    Array = np.ndarray[Any, np.dtype[Any]]

_SHOWN = 3  # layers with a heat map in the page; data.npz has them all


def run(request: Request) -> Findings:
    """Transition tables, mutual information with its controls, and held-out log-loss, of every trace."""
    findings = Findings("moecache study transitions")
    routings = [Routing.of(trace, name) for name, trace in request.traces]
    for routing in routings:
        request.progress(f"transitions: {routing.name}")
        _probabilities(findings, routing)
        _information(findings, routing, np.random.default_rng(request.seed))
    splits, notes = all_splits(routings)
    findings.heading("What it is worth on held-out parts")
    findings.say(
        "Bits per expert by which knowing the first expert of the context improves on popularity when the token's "
        "first expert is predicted: log-loss of popularity less that of the conditional, counts interpolated "
        "with the shorter context (Witten and Bell); second order has both contexts. Below 0: it does not generalise."
    )
    findings.notes(notes)
    rows = [[split.name, *gains(split)] for split in splits]
    header = [
        "held out",
        "popularity (bits)",
        "layer -1",
        "layers -1, -2",
        "token -1",
        "tokens -1, -2",
        "layer -1 and token -1",
    ]
    findings.table("log_loss", header, rows)
    return findings


def _contexts(routing: Routing, tokens: Array) -> dict[str, Array]:
    """[n, L, k] ids of each context of the tokens; -1: there is none."""
    own = routing.ids[tokens]
    last = ids_of(routing, before(routing, tokens))
    return {
        "layer -1": layer_before(own),
        "layer -2": layer_before(layer_before(own)),
        "token -1": last,
        "token -2": ids_of(routing, before(routing, tokens, 2)),
    }


def _probabilities(findings: Findings, routing: Routing) -> None:
    findings.heading(f"Transitions of {routing.name}")
    tokens = np.arange(routing.n_tokens)
    contexts = _contexts(routing, tokens)
    rows: list[list[Any]] = []
    for name in ("layer -1", "token -1"):
        kept = {}
        for layer in range(len(routing.layers)):
            one, other = contexts[name][:, layer], routing.ids[:, layer]
            if not (one >= 0).any():
                continue
            uses = np.bincount(one[one >= 0], minlength=routing.most_experts)
            given = conditional(pair_counts(one, other, routing.most_experts), uses)
            share = routing.counts()[layer] / routing.n_tokens
            n = np.arange(routing.most_experts)
            weights = uses / max(uses.sum(), 1)
            likeliest = float(weights @ given.max(axis=1))
            again = float(weights @ given[n, n]) if name == "token -1" else None
            rows.append([routing.layers[layer], name, likeliest, float(share.max()), again])
            kept[f"layer {routing.layers[layer]}"] = given
            findings.arrays[f"given/{name}/{routing.name}/{routing.layers[layer]}"] = given.astype(np.float32)
        if kept:
            names = list(kept)
            shown = [names[i] for i in sorted({0, len(names) // 2, len(names) - 1})][:_SHOWN]
            findings.draw(matrices({n: kept[n] for n in shown}, "expert", f"expert of {name}", "P(used | used)"))
    findings.say(
        "P(expert j is used | expert i is used in the layer or token before). 'likeliest': the best j's probability, "
        "mean over the uses of i, of the same tokens: too high where an expert was seen few times (elsewhere: "
        "the held-out losses); 'popularity': that of the layer's most used expert; 'same': j = i."
    )
    header = ["layer", "given", "likeliest", "popularity", "same"]
    findings.table("transitions", header, rows, trace=routing.name)


def _information(findings: Findings, routing: Routing, generator: np.random.Generator) -> None:
    if routing.rank_is_lost:
        findings.say("Mutual information is that of first experts; this trace does not have the order of the top-k.")
        return
    findings.heading(f"Mutual information of {routing.name}", 3)
    findings.say(
        "Of the highest-ranked experts, in bits: plug-in estimate, Miller and Madow's correction, and the plug-in "
        "estimate with the context permuted over the tokens (mean of 5), which is all bias. For second order the "
        "further context given the nearer one, permuted within equal nearer contexts."
    )
    contexts = {name: ids[..., 0] for name, ids in _contexts(routing, np.arange(routing.n_tokens)).items()}
    rows: list[list[Any]] = []
    curves: dict[str, list[tuple[float, float]]] = {}
    for layer in range(len(routing.layers)):
        own = routing.ids[:, layer, 0]
        for name in ("layer -1", "token -1"):
            further = name.replace("1", "2")
            there = (own >= 0) & (contexts[name][:, layer] >= 0)
            if not there.any():
                continue
            found = mutual_information(contexts[name][there, layer], own[there], generator)
            rows.append([routing.layers[layer], name, found.n, found.plug_in, found.miller_madow, found.shuffled])
            curves.setdefault(name, []).append((layer, found.above_control))
            there &= contexts[further][:, layer] >= 0
            if there.any():
                more = conditional_information(
                    contexts[further][there, layer], own[there], contexts[name][there, layer], generator
                )
                label = f"{further} given {name}"
                rows.append([routing.layers[layer], label, more.n, more.plug_in, more.miller_madow, more.shuffled])
                curves.setdefault(label, []).append((layer, max(0.0, more.above_control)))
    findings.draw(lines(curves, "layer (place)", "bits above the shuffled control"))
    header = ["layer", "context", "samples", "plug-in", "Miller-Madow", "shuffled"]
    findings.table("information", header, rows, trace=routing.name)


def gains(split: Split) -> list[float | None]:
    """[bits of popularity, gain of each context in the order of the report's columns], means over layers and tokens."""
    fitted, tested = _contexts(split.fit_on, split.fit), _contexts(split.test_on, split.test)
    orders = (["layer -1"], ["layer -1", "layer -2"], ["token -1"], ["token -1", "token -2"], ["layer -1", "token -1"])
    n_layers = len(split.test_on.layers)
    losses = np.zeros(len(orders) + 1)
    n = 0
    for layer in range(n_layers):
        own, other = split.fit_on.ids[split.fit, layer, 0], split.test_on.ids[split.test, layer, 0]
        n_experts = int(split.test_on.n_experts[layer])
        for i, order in enumerate([[], *orders]):
            found = log_loss(
                [fitted[name][:, layer, 0] for name in order],
                own,
                [tested[name][:, layer, 0] for name in order],
                other,
                n_experts,
            )
            losses[i] += found.sum()
        n += int((other >= 0).sum())
    if n == 0:
        return [None] * (len(orders) + 1)
    losses /= n
    return [float(losses[0]), *(float(losses[0] - loss) for loss in losses[1:])]
