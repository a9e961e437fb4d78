"""The predictors by name; a new one is a file beside this and a line here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggml_moecache.errors import ConfigError
from pyanalysis.studies.predictors.activation_match import ActivationMatch
from pyanalysis.studies.predictors.counting import Combined, CrossToken, InterLayer, LastToken, Popularity
from pyanalysis.studies.predictors.logistic import Logistic
from pyanalysis.studies.predictors.reservoir import Reservoir
from pyanalysis.studies.predictors.state_space import StateSpace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyanalysis.studies.predictors.base import Predictor

PREDICTORS: dict[str, Callable[[int], Predictor]] = {
    "popularity": lambda _: Popularity(),
    "last-token": lambda _: LastToken(),
    "inter-layer": lambda _: InterLayer(),
    "cross-token": lambda _: CrossToken(),
    "combined": lambda _: Combined(),
    "activation-match": ActivationMatch,
    "logistic": Logistic,
    "reservoir": Reservoir,
    "reservoir-shuffled": lambda seed: Reservoir(seed, order_lost=True),
    "state-space": StateSpace,
    "state-space-shuffled": lambda seed: StateSpace(seed, order_lost=True),
}


def chosen(names: Sequence[str] | None) -> list[str]:
    """`names`, or all. Raises ConfigError for one that does not exist or is named twice."""
    for place, name in enumerate(names or ()):
        if name in (names or ())[:place]:
            raise ConfigError(f"the predictor '{name}' is named twice")
        if name not in PREDICTORS:
            raise ConfigError(f"there is no predictor '{name}'; predictors: {', '.join(PREDICTORS)}")
    return list(names or PREDICTORS)
