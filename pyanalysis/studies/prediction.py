"""moecache study prediction: which of a token's experts each predictor finds, and what it costs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from pyanalysis.report.plots import lines
from pyanalysis.studies.estimators.recall import found_in_best
from pyanalysis.studies.findings import Findings
from pyanalysis.studies.plots import bars
from pyanalysis.studies.predictors.base import chunks
from pyanalysis.studies.predictors.table import PREDICTORS, chosen
from pyanalysis.studies.routing import Routing
from pyanalysis.studies.splits import all_splits

if TYPE_CHECKING:
    from pyanalysis.studies.predictors.base import Predictor
    from pyanalysis.studies.registry import Request
    from pyanalysis.studies.splits import Split

    Array = np.ndarray[Any, np.dtype[Any]]

STEPS = 8
_FORECAST_TOKENS = 8192


def run(request: Request) -> Findings:
    """Fits every predictor on every split, then scores the held-out tokens."""
    names = chosen(request.predictors)
    routings = [Routing.of(trace, name) for name, trace in request.traces]
    splits, notes = all_splits(routings)
    findings = Findings("moecache study prediction")
    findings.say(
        "Recall: share of a token's experts that are among the k, k + 3 or 2k best-scored of their layer (k is the "
        "top-k), over held-out decoded tokens. 'before' says what a prediction may look at: the tokens before (lead "
        "time one token), or also the layers before of the same token (lead time one layer). Whatever came before in "
        "the request is known, as it would be at run time. 'us per token' is that of numpy with many tokens at once, "
        "'KiB' the size of what was learnt, 'KiB read' what predicting one token by itself reads of it."
    )
    findings.notes(notes)
    rows: list[list[Any]] = []
    steps: list[list[Any]] = []
    for split in splits:
        for name in names:
            request.progress(f"prediction: {split.name}: {name}")
            predictor = PREDICTORS[name](request.seed)
            row, by_layer = measured(predictor, split)
            rows.append([split.name, name, predictor.known, *row])
            findings.arrays[f"recall/{split.name}/{name}"] = by_layer
            if hasattr(predictor, "forecast"):
                steps.append([split.name, name, *forecast_recall(predictor, split)])
    findings.heading("Recall")
    header = ["held out", "predictor", "before", "k", "k+3", "2k", "fit s", "us per token", "KiB", "KiB read"]
    findings.table("recall", header, rows)
    by_split = list(dict.fromkeys(row[0] for row in rows))
    found = {split_name: [100 * row[4] for row in rows if row[0] == split_name] for split_name in by_split}
    findings.draw(bars(found, names, "predictor", "recall of the top k+3 (%)"))
    if steps:
        findings.heading("Recall of the top k+3, j tokens ahead")
        findings.say(
            f"From at most {_FORECAST_TOKENS:,} evenly spaced held-out tokens of each split. The sequence models' own "
            "predictions are fed back."
        )
        findings.table("forecast", ["held out", "predictor", *(f"j={j}" for j in range(1, STEPS + 1))], steps)
        for split in splits:
            own = {row[1]: list(enumerate(row[2:], 1)) for row in steps if row[0] == split.name}
            curves = {name: [(j, 100 * v) for j, v in points if v is not None] for name, points in own.items()}
            findings.heading(split.name, 3)
            findings.draw(lines({n: p for n, p in curves.items() if p}, "tokens ahead", "recall of the top k+3 (%)"))
    return findings


def measured(predictor: Predictor, split: Split) -> tuple[list[float], Array]:
    """(the values of a row of the report, float64[L] recall at k + 3 of each layer).

    Values: recall at k, k + 3, 2k; seconds to fit, us per token to predict in batches, KiB, KiB read per token.
    """
    started = time.perf_counter()
    predictor.fit(split.fit_on, split.fit)
    fitted = time.perf_counter()
    k = split.test_on.ids.shape[2]
    sizes = (k, k + 3, 2 * k)
    found = np.zeros((3, len(split.test_on.layers)), dtype=np.int64)
    asked = np.zeros(len(split.test_on.layers), dtype=np.int64)
    spent = 0.0
    for part in chunks(split.test_on, split.test):
        begun = time.perf_counter()
        scores = predictor.scores(split.test_on, part)
        spent += time.perf_counter() - begun
        more, n = found_in_best(scores, split.test_on.ids[part], sizes)
        found += more
        asked += n
    recalls = (found.sum(axis=1) / max(asked.sum(), 1)).tolist()
    costs = [fitted - started, 1e6 * spent / max(len(split.test), 1)]
    costs += [predictor.n_bytes() / 1024, predictor.bytes_per_token(k) / 1024]
    return recalls + costs, found[1] / np.maximum(asked, 1)


def forecast_recall(predictor: Any, split: Split, most: int = _FORECAST_TOKENS) -> list[float | None]:  # noqa: ANN401
    """Recall at k+3 of a fitted predictor for 1 to STEPS tokens ahead; None: no request is so long."""
    routing = split.test_on
    length = np.bincount(routing.request)[routing.request]
    ahead = length - 1 - routing.place  # tokens of the request behind each
    sources = split.test[:: max(1, -(-len(split.test) // most))]
    found, asked = np.zeros(STEPS), np.zeros(STEPS)
    for part in chunks(routing, sources):
        for step, scores in enumerate(predictor.forecast(routing, part, STEPS), 1):
            there = ahead[part] >= step
            more, n = found_in_best(scores[there], routing.ids[part[there] + step], (routing.ids.shape[2] + 3,))
            found[step - 1] += more.sum()
            asked[step - 1] += n.sum()
    return [float(f / a) if a else None for f, a in zip(found, asked, strict=True)]
