"""Mutual information of discrete variables in bits, with a bias correction and a shuffled control.

The plug-in estimate is too high where samples are few for the number of cells. Two remedies, reported side by side:
Miller and Madow's correction of each entropy, and the plug-in estimate of the same samples with one variable permuted,
whose true value is 0: what it finds is bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pyanalysis.studies.estimators.concentration import entropy_bits

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]

N_SHUFFLES = 5


@dataclass(frozen=True)
class Information:
    """In bits; n samples.

    plug_in        of the samples as they are
    miller_madow   bias-corrected entropies; may be below 0
    shuffled       mean plug-in estimate of the shuffled control: the bias
    n              samples
    """

    plug_in: float
    miller_madow: float
    shuffled: float
    n: int

    @property
    def above_control(self) -> float:
        return self.plug_in - self.shuffled


def mutual_information(x: Array, y: Array, generator: np.random.Generator) -> Information:
    """I(X; Y) of samples x, y int[n], n >= 1."""
    hx, hy, hxy = (_entropies(v) for v in (x, y, _joint(x, y)))
    controls = [hx[0] + hy[0] - _entropies(_joint(x, generator.permutation(y)))[0] for _ in range(N_SHUFFLES)]
    return Information(hx[0] + hy[0] - hxy[0], hx[1] + hy[1] - hxy[1], float(np.mean(controls)), len(x))


def conditional_information(x: Array, y: Array, given: Array, generator: np.random.Generator) -> Information:
    """I(X; Y | Z) of samples int[n], n >= 1. The control permutes y among the samples of equal z."""
    xz, yz, xyz = _joint(x, given), _joint(y, given), _joint(_joint(x, y), given)
    terms = [_entropies(v) for v in (xz, yz, xyz, given)]
    plug_in, corrected = (terms[0][i] + terms[1][i] - terms[2][i] - terms[3][i] for i in (0, 1))
    strata = np.argsort(given, kind="stable")
    controls = []
    for _ in range(N_SHUFFLES):
        within = np.lexsort((generator.random(len(y)), given))
        permuted = np.empty_like(y)
        permuted[strata] = y[within]
        hy, hxyz = _entropies(_joint(permuted, given))[0], _entropies(_joint(_joint(x, permuted), given))[0]
        controls.append(terms[0][0] + hy - hxyz - terms[3][0])
    return Information(plug_in, corrected, float(np.mean(controls)), len(x))


def _joint(x: Array, y: Array) -> Array:
    """One number for each pair of values."""
    y = np.unique(y, return_inverse=True)[1]
    x = np.unique(x, return_inverse=True)[1]
    joint: Array = x.astype(np.int64) * (int(y.max()) + 1) + y
    return joint


def _entropies(values: Array) -> tuple[float, float]:
    counts = np.unique(values, return_counts=True)[1]
    return entropy_bits(counts), entropy_bits(counts, corrected=True)
