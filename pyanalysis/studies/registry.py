"""The studies by name: one line here, one file beside this one. Modules are imported when their study is run."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ggml_moecache.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyanalysis.cost import CostModel
    from pyanalysis.studies.findings import Findings
    from pyanalysis.traces import Trace


@dataclass(frozen=True)
class Request:
    """What a study is asked for.

    traces     with their names in the report, all different
    seed       of everything that draws
    percents   capacities in per cent of the experts, rising
    costs      cost models; empty where the study takes none
    per_layer  a budget for each layer, else one for all
    n_tokens   only the first so many tokens of each trace were read; None: all
    predictors, strategies   names, None: all that the study has
    progress   called with a line that says what is being done
    """

    traces: tuple[tuple[str, Trace], ...]
    seed: int = 0
    percents: tuple[float, ...] = (5.0, 10.0, 15.0, 25.0, 45.0)
    costs: tuple[CostModel, ...] = ()
    per_layer: bool = False
    n_tokens: int | None = None
    predictors: tuple[str, ...] | None = None
    strategies: tuple[str, ...] | None = None
    progress: Callable[[str], None] = field(default=lambda _: None)


@dataclass(frozen=True)
class Study:
    """One study.

    takes            names of the options beside --seed and --tokens that mean something to it
    layer_percents   capacities in per cent of each layer's experts whose hit rates it prints, where it has its own
    """

    name: str
    summary: str
    module: str
    takes: frozenset[str] = frozenset()
    default_tokens: int | None = None
    layer_percents: tuple[float, ...] = ()

    def load(self) -> Callable[[Request], Findings]:
        """The function that does it. Raises MissingDependencyError (through the module) for an absent extra."""
        run: Callable[[Request], Findings] = importlib.import_module(self.module).run
        return run


_HERE = "pyanalysis.studies"
_CAPACITY = frozenset({"capacity", "per_layer"})
# Capacities of the studies that take none, in per cent of each layer's experts.
FREQUENCY_PERCENT = 25.0
REUSE_PERCENTS = (5.0, 10.0, 15.0, 25.0, 45.0)

STUDIES: tuple[Study, ...] = (
    Study(
        "frequency",
        "concentration, drift, how much history a ranking needs",
        f"{_HERE}.frequency",
        layer_percents=(FREQUENCY_PERCENT,),
    ),
    Study(
        "reuse",
        "run lengths, reuse distances, router weight against reuse",
        f"{_HERE}.reuse",
        layer_percents=REUSE_PERCENTS,
    ),
    Study(
        "transitions", "experts given experts of the layer or token before, mutual information", f"{_HERE}.transitions"
    ),
    Study(
        "prediction",
        "recall of predictors on held-out parts, with their costs",
        f"{_HERE}.prediction",
        frozenset({"predictors"}),
    ),
    Study(
        "token-signal", "the token that a layer would give against the next layer's experts", f"{_HERE}.token_signal"
    ),
    Study(
        "strategies",
        "prefetching and predicted eviction with a clock, against the decision's winner",
        f"{_HERE}.strategies",
        takes=_CAPACITY | {"cost", "strategies"},
        default_tokens=20_000,
    ),
    Study(
        *("replay-semantics", "event-atomic against per-access replay", f"{_HERE}.semantics", _CAPACITY),
    ),
    Study(
        "contamination", "requests that begin alike, and hit rates without them", f"{_HERE}.contamination", _CAPACITY
    ),
    Study("regime", "experts that a step needs over the slots", f"{_HERE}.regime", frozenset({"capacity"})),
    Study("permutation", "the same tokens in another order: what is locality", f"{_HERE}.permutation", _CAPACITY),
    Study(
        "oracle-gap",
        "what knowing the furthest next use is worth, victim agreement",
        f"{_HERE}.oracle",
        _CAPACITY,
        20_000,
    ),
)


def find(name: str) -> Study:
    """Raises ConfigError for a study that does not exist."""
    for study in STUDIES:
        if study.name == name:
            return study
    raise ConfigError(f"there is no study '{name}'; studies: {', '.join(study.name for study in STUDIES)}")


def folder_is_free(folder: Path, *, force: bool) -> None:
    """Raises ConfigError before the work begins if the report could not be written there."""
    from pyanalysis.report.write import refuse_existing  # noqa: PLC0415 - needs the extra report

    refuse_existing(folder, force=force)
