"""How the time of a sweep grows with tokens, layers, experts and capacities: part of `moecache bench simulate`."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pyanalysis.bench_simulate import POLICIES, Growth
from pyanalysis.simulation import sweep
from pyanalysis.simulation.stream import EventStream
from pyanalysis.traces import metadata
from pyanalysis.traces.foreign import Columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyanalysis.traces import Trace

_TOKENS = 8192
_LAYERS = 8
_EXPERTS = 64
_TOP_K = 8
_N_CAPACITIES = 8


def growth(workers: int | None) -> list[Growth]:
    """Seconds of a sweep of the 8 policies over made traces: one quantity doubled twice, the others as they are.

    Experts are drawn by 1 / (rank + 1), in each layer in an order of its own. One thread of time per point is what
    grows; the number of threads is the same for all points.
    """
    points: list[tuple[str, dict[str, int]]] = [
        *(("tokens", {"tokens": n}) for n in (_TOKENS, 2 * _TOKENS, 4 * _TOKENS)),
        *(("layers", {"layers": n}) for n in (_LAYERS, 2 * _LAYERS, 4 * _LAYERS)),
        *(("experts", {"experts": n}) for n in (_EXPERTS, 2 * _EXPERTS, 4 * _EXPERTS)),
        *(("capacities", {"capacities": n}) for n in (_N_CAPACITIES, 2 * _N_CAPACITIES, 4 * _N_CAPACITIES)),
    ]
    found = []
    for varied, changes in points:
        size = {"tokens": _TOKENS, "layers": _LAYERS, "experts": _EXPERTS, "capacities": _N_CAPACITIES, **changes}
        found.append(_measure(varied, size, workers))
        print(f"growth: {found[-1]}", file=sys.stderr, flush=True)
    return found


def _measure(varied: str, size: dict[str, int], workers: int | None) -> Growth:
    trace = made_trace(size["tokens"], size["layers"], size["experts"])
    n = size["capacities"]
    capacities: Sequence[int] = [max(1, round(size["experts"] * place / n)) for place in range(1, n + 1)]
    stream = EventStream.of(trace)
    started = time.perf_counter()
    sweep([stream], POLICIES, capacities, per_layer=True, victim_agreement=False, workers=workers)
    return Growth(varied, size["tokens"], size["layers"], size["experts"], n, time.perf_counter() - started)


def made_trace(n_tokens: int, n_layers: int, n_experts: int, seed: int = 0) -> Trace:
    """Decoded tokens of one request, top-8, ids drawn without replacement with probability by 1 / (rank + 1)."""
    generator = np.random.default_rng(seed)
    weight = np.log(1.0 / (np.arange(n_experts) + 1))
    ids = np.empty((n_tokens, n_layers, _TOP_K), dtype=np.int32)
    for layer in range(n_layers):
        # The k largest of log weight + Gumbel noise are a draw without replacement (Efraimidis, Spirakis 2006).
        noisy = weight + generator.gumbel(size=(n_tokens, n_experts))
        ranks = np.argpartition(-noisy, _TOP_K, axis=1)[:, :_TOP_K]
        ids[:, layer] = generator.permutation(n_experts)[ranks]
    n = n_tokens * n_layers
    about = metadata.blank("made")
    about["model"].update(n_experts=n_experts, top_k=_TOP_K)
    columns = Columns(
        request=np.zeros(n),
        token=np.repeat(np.arange(n_tokens), n_layers),
        layer=np.tile(np.arange(n_layers), n_tokens),
        phase=np.ones(n),
        batch=np.full(n, -1),
        ids=ids.reshape(n, _TOP_K),
        line=np.arange(1, n + 1),
    )
    return replace(columns.trace(Path("made"), about), notes=("made by moecache bench simulate",))
