"""A perceptron with one hidden layer and many independent yes-or-no outputs, trained with Adam: numpy only.

Kingma and Ba, "Adam: a method for stochastic optimization" (2015).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import expit

if TYPE_CHECKING:
    from collections.abc import Callable

    Array = np.ndarray[Any, np.dtype[Any]]
    # Places int64[n] of samples -> (inputs [n, I], targets [n, O] of 0 and 1, counted [n, O]: 0 where nothing is known)
    Samples = Callable[[Array], tuple[Array, Array, Array]]

PATIENCE = 2
BATCH = 256
_FEWEST_STEPS = 40  # of a round
_DECAYS = (0.9, 0.999)


class Perceptron:
    """p = sigmoid(base + tanh(x W1 + b1) W2 + b2). `base` [O]: the logits that it begins with.

    W1 begins with small normal draws, b1, W2 and b2 with 0, so that an untrained one says `base` and nothing else.
    """

    def __init__(self, n_inputs: int, n_hidden: int, base: Array, generator: np.random.Generator) -> None:
        kind, scale = base.dtype, 1 / np.sqrt(n_inputs)
        self.base = base
        self.parameters: list[Array] = [
            (scale * generator.standard_normal((n_inputs, n_hidden))).astype(kind),
            np.zeros(n_hidden, dtype=kind),
            np.zeros((n_hidden, len(base)), dtype=kind),
            np.zeros(len(base), dtype=kind),
        ]

    def probabilities(self, x: Array) -> Array:
        """[n, O]."""
        into, into_bias, out, out_bias = self.parameters
        found: Array = expit(self.base + np.tanh(x @ into + into_bias) @ out + out_bias)
        return found

    def loss_and_gradients(self, x: Array, y: Array, counted: Array) -> tuple[float, list[Array]]:
        """Cross-entropy in nats per sample, summed over its counted outputs, and its slope by each of `parameters`."""
        into, into_bias, out, out_bias = self.parameters
        hidden = np.tanh(x @ into + into_bias)
        logits = self.base + hidden @ out + out_bias
        loss = float((counted * (np.logaddexp(0, logits) - y * logits)).sum() / len(x))
        slope = counted * (expit(logits) - y) / len(x)
        back = (slope @ out.T) * (1 - hidden**2)
        return loss, [x.T @ back, back.sum(axis=0), hidden.T @ slope, slope.sum(axis=0)]

    def train(
        self, samples: Samples, n_samples: int, *, n_held: int, rounds: int, rate: float, generator: np.random.Generator
    ) -> None:
        """Learn from the samples 0 to n_samples - 1. A round takes each once in a random order, few of them repeatedly.

        The last `n_held` are not learnt from: training ends when their loss was above the least one after PATIENCE
        rounds, and the weights with the least loss stay, which may be those of the beginning (none held: the last).
        """
        held, rises = np.arange(n_samples - n_held, n_samples), 0
        best, least = [p.copy() for p in self.parameters], self._loss(samples, held) if n_held else np.inf
        moments = [[np.zeros_like(p) for p in self.parameters] for _ in _DECAYS]
        n_learnt, step = n_samples - n_held, 0
        repeats = max(1, _FEWEST_STEPS * BATCH // n_learnt)
        for _ in range(rounds):
            order = np.concatenate([generator.permutation(n_learnt) for _ in range(repeats)])
            for begin in range(0, len(order), BATCH):
                step += 1
                _, slopes = self.loss_and_gradients(*samples(order[begin : begin + BATCH]))
                self._adam(slopes, moments, step, rate)
            if n_held == 0:
                continue
            loss = self._loss(samples, held)
            if loss < least:
                best, least, rises = [p.copy() for p in self.parameters], loss, 0
            elif (rises := rises + 1) == PATIENCE:
                break
        if n_held:
            self.parameters = best

    def _loss(self, samples: Samples, places: Array) -> float:
        parts = [places[begin : begin + BATCH] for begin in range(0, len(places), BATCH)]
        return sum(self.loss_and_gradients(*samples(part))[0] * len(part) for part in parts) / len(places)

    def _adam(self, slopes: list[Array], moments: list[list[Array]], step: int, rate: float) -> None:
        for i, slope in enumerate(slopes):
            first, second = (moment[i] for moment in moments)
            first += (1 - _DECAYS[0]) * (slope - first)
            second += (1 - _DECAYS[1]) * (slope**2 - second)
            mean, spread = first / (1 - _DECAYS[0] ** step), second / (1 - _DECAYS[1] ** step)
            self.parameters[i] -= rate * mean / (np.sqrt(spread) + 1e-8)
