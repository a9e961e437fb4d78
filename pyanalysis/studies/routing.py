"""The decoded tokens of a trace as dense arrays, which is what studies work on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ggml_moecache.errors import ConfigError

if TYPE_CHECKING:
    from pyanalysis.traces import Trace

    Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Routing:
    """T decoded tokens, requests one after the other; L columns (layer and family, rising), k experts each.

    ids        int16[T, L, k]    -1: not recorded
    weights    float32[T, L, k] or None; NaN: not recorded
    top1       int64[T, L] or None   token from the layer's hidden state, -1: not sampled
    request    int32[T]          number of the request in the order of first appearance
    row        int64[T, L]       row of the trace, -1: there is none
    n_experts  int64[L]
    """

    name: str
    ids: Array
    weights: Array | None
    top1: Array | None
    request: Array
    row: Array
    n_experts: Array
    layers: tuple[str, ...]
    n_prompt_tokens: int

    @property
    def n_tokens(self) -> int:
        return len(self.ids)

    @property
    def most_experts(self) -> int:
        return int(self.n_experts.max())

    @property
    def geometry(self) -> tuple[tuple[str, ...], tuple[int, ...], int]:
        """What two traces must share to be told apart by their workload alone."""
        return self.layers, tuple(self.n_experts.tolist()), self.ids.shape[2]

    @cached_property
    def begins(self) -> Array:
        """bool[T]: the first decoded token of its request."""
        begins = np.ones(self.n_tokens, dtype=bool)
        begins[1:] = self.request[1:] != self.request[:-1]
        return begins

    @cached_property
    def place(self) -> Array:
        """int64[T]: place among the decoded tokens of its request, from 0."""
        at = np.arange(self.n_tokens)
        return at - np.maximum.accumulate(np.where(self.begins, at, 0))

    @cached_property
    def rank_is_lost(self) -> bool:
        """All ids rise within their event: the order of the top-k was not kept, so there is no top-1 expert."""
        if self.ids.shape[2] < 2:  # noqa: PLR2004 - nothing to be in order
            return False
        both = self.ids[..., 1:] >= 0
        return bool((self.ids[..., 1:] > self.ids[..., :-1])[both].all())

    def multi_hot(self, tokens: Array | slice, kind: Any = np.float32) -> Array:  # noqa: ANN401 - a numpy type
        """[n, L, E]: 1 where the token uses the expert."""
        ids = self.ids[tokens].astype(np.int64)
        n, n_layers, _ = ids.shape
        hot = np.zeros((n, n_layers, self.most_experts + 1), dtype=kind)
        np.put_along_axis(hot, np.where(ids < 0, self.most_experts, ids), 1, axis=2)
        return hot[..., :-1]

    def counts(self, tokens: Array | slice | None = None) -> Array:
        """int64[L, E]: uses of each expert."""
        ids = self.ids if tokens is None else self.ids[tokens]
        return np.stack(
            [
                np.bincount(ids[:, layer][ids[:, layer] >= 0], minlength=self.most_experts)
                for layer in range(len(self.layers))
            ]
        )

    @staticmethod
    def of(trace: Trace, name: str) -> Routing:
        """Raises ConfigError for a trace without a decoded token, or with more than 32,767 experts in a layer."""
        column, layers = trace.columns
        tokens = trace.tokens
        first = np.full(len(tokens), trace.n_events, dtype=np.int64)
        np.minimum.at(first, tokens.of_event, np.arange(trace.n_events))
        decoded = np.flatnonzero(tokens.phase == 1)
        if len(decoded) == 0:
            raise ConfigError(f"{trace.path}: no token was decoded; studies are about decoding")
        request = np.unique(tokens.request, return_inverse=True)[1]
        begin = np.full(int(request.max()) + 1, trace.n_events, dtype=np.int64)
        np.minimum.at(begin, request, first)
        order = decoded[np.lexsort((first[decoded], begin[request[decoded]]))]
        place = np.full(len(tokens), -1, dtype=np.int64)
        place[order] = np.arange(len(order))
        place_of_event = place[tokens.of_event]
        inside = np.flatnonzero(place_of_event >= 0)
        row = np.full((len(order), len(layers)), -1, dtype=np.int64)
        row[place_of_event[inside], column[inside]] = inside
        n_experts = np.array([_n_experts(trace, column, layers, index) for index in range(len(layers))])
        if n_experts.max() > np.iinfo(np.int16).max:
            raise ConfigError(f"{trace.path}: studies take at most 32,767 experts in a layer")
        missing = row < 0
        ids = trace.ids[row].astype(np.int16)
        ids[missing] = -1
        weights = top1 = None
        if trace.weights is not None:
            weights = trace.weights[row]
            weights[missing] = np.nan
        if trace.top1 is not None:
            top1 = np.where(missing, -1, trace.top1[row])
        number = np.unique(begin[request[order]], return_inverse=True)[1].astype(np.int32)
        names = tuple(
            str(layer) if trace.families[family] == "exps" else f"{layer} {trace.families[family]}"
            for layer, family in layers.tolist()
        )
        n_prompt = len(tokens) - len(decoded)
        return Routing(name, ids, weights, top1, number, row, n_experts, names, n_prompt)


def _n_experts(trace: Trace, column: Array, layers: Array, index: int) -> int:
    layer, family = layers[index].tolist()
    known = trace.n_experts(layer, trace.families[family])
    if known is not None:
        return known
    return int(trace.ids[np.isin(column, np.flatnonzero(layers[:, 1] == family))].max()) + 1
