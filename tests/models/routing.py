"""Planted routing: which experts a token is sent to is decided when the model is written, not by chance of rounding.

Every (MoE layer, expert) owns one coordinate of the residual stream, its channel. The token embedding writes a level
into the channels of the experts the token shall use, nothing else writes there (every matrix that adds to the residual
stream has zero rows at the channels), and the router reads exactly its own channels. So the ordered top-k of a token is
known in advance, depends on the token alone and is separated by gaps that no rounding difference can close.

Expert popularity is skewed (Zipf), as in trained models: some experts are used by most tokens, some by few.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tests.models.geometry import Geometry

# The highest level and the step between ranks. Gaps of 0.5 stay above 0.1 after RMS norm; the levels that are not
# chosen stay below 0.5, at least 1.5 away from the lowest chosen one for top_k <= 5.
TOP_LEVEL = 4.0
RANK_STEP = 0.5
UNCHOSEN_LIMIT = 0.5
ZIPF_EXPONENT = 0.7

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]


class PlantedRouting:
    """Ordered expert choice of every token in every MoE layer, and the tensors that bring it about."""

    def __init__(self, geometry: Geometry, seed: int) -> None:
        if len(geometry.moe_layers) * geometry.n_expert > geometry.n_embd // 2:
            raise ValueError(
                f"planted routing needs {len(geometry.moe_layers) * geometry.n_expert} channels, at most half of the "
                f"{geometry.n_embd} coordinates may be channels"
            )
        if geometry.top_k > 5:
            raise ValueError(f"planted routing separates at most 5 ranks, got top_k = {geometry.top_k}")
        self._geometry = geometry
        self._choice = {
            layer: _choose(geometry, np.random.default_rng([seed, 101, layer])) for layer in geometry.moe_layers
        }
        self._noise_seed = seed

    @property
    def channels(self) -> IntArray:
        """Coordinates of the residual stream that carry routing, shape (n_moe_layer * n_expert,)."""
        return np.arange(len(self._geometry.moe_layers) * self._geometry.n_expert)

    def expert_ids(self, layer: int, tokens: npt.ArrayLike) -> IntArray:
        """Experts of each token in rank order, shape (n_token, top_k)."""
        chosen: IntArray = self._choice[layer][np.asarray(tokens)]
        return chosen

    def write_levels(self, embedding: FloatArray) -> None:
        """Write the levels into the channels of `embedding` (n_vocab, n_embd), in place."""
        geometry = self._geometry
        rng = np.random.default_rng([self._noise_seed, 102])
        for layer in geometry.moe_layers:
            first = self._first_channel(layer)
            levels = rng.uniform(-UNCHOSEN_LIMIT, UNCHOSEN_LIMIT, (geometry.n_vocab, geometry.n_expert))
            ranks = TOP_LEVEL - RANK_STEP * np.arange(geometry.top_k)
            np.put_along_axis(levels, self._choice[layer], ranks[None, :], axis=1)
            embedding[:, first : first + geometry.n_expert] = levels

    def router(self, layer: int) -> FloatArray:
        """Router matrix of a layer, shape (n_expert, n_embd): one row per expert that reads the expert's channel."""
        matrix = np.zeros((self._geometry.n_expert, self._geometry.n_embd), np.float32)
        rows = np.arange(self._geometry.n_expert)
        matrix[rows, self._first_channel(layer) + rows] = 1.0
        return matrix

    def _first_channel(self, layer: int) -> int:
        return self._geometry.moe_layers.index(layer) * self._geometry.n_expert


def _choose(geometry: Geometry, rng: np.random.Generator) -> IntArray:
    """Ordered distinct experts per token, shape (n_vocab, top_k), drawn by Gumbel top-k from a Zipf distribution."""
    popularity = -ZIPF_EXPONENT * np.log1p(rng.permutation(geometry.n_expert))
    scores = popularity + rng.gumbel(size=(geometry.n_vocab, geometry.n_expert))
    if geometry.n_group > 1:
        scores = _keep_groups(scores, geometry)
    return np.argsort(-scores, axis=1, kind="stable")[:, : geometry.top_k]


def _keep_groups(scores: npt.NDArray[np.float64], geometry: Geometry) -> npt.NDArray[np.float64]:
    """Leave top_k / n_group_used experts in each of the best n_group_used groups, so that those groups win."""
    if geometry.top_k != 2 * geometry.n_group_used:
        raise ValueError("a group's score is the sum of its two best experts: plant exactly two experts per used group")
    per_group = geometry.n_expert // geometry.n_group
    grouped = scores.reshape(-1, geometry.n_group, per_group)
    second_best = np.sort(grouped, axis=2)[:, :, -2]
    group_order = np.argsort(-second_best, axis=1, kind="stable")
    kept = np.where(grouped >= second_best[:, :, None], grouped, -np.inf)
    unused = group_order[:, geometry.n_group_used :]
    np.put_along_axis(kept, unused[:, :, None], -np.inf, axis=1)
    return kept.reshape(scores.shape)
