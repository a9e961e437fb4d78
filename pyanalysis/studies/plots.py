"""Plots that only studies have: matrices, and several of them side by side. The rest are those of pyanalysis.report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure

from pyanalysis.report.plots import STYLE, legend, svg

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

_MOST_TICKS = 32


def matrices(named: Mapping[str, Array], x_label: str, y_label: str, label: str) -> str:
    """Matrices [rows, columns] side by side, one color scale from 0 to their largest value."""
    top = max(float(values.max()) for values in named.values())
    with mpl.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(3.1 * len(named) + 1, 3.4), layout="constrained")
        all_axes = figure.subplots(1, len(named), squeeze=False)[0]
        for axes, (name, values) in zip(all_axes, named.items(), strict=True):
            image = axes.imshow(values, vmin=0, vmax=top or 1, cmap="viridis", interpolation="nearest", aspect="auto")
            axes.set_title(name)
            axes.set_xlabel(x_label)
            axes.set_ylabel(y_label)
        figure.colorbar(image, ax=list(all_axes), label=label)
        return svg(figure)


def bars(groups: Mapping[str, Sequence[float]], ticks: Sequence[str], x_label: str, y_label: str) -> str:
    """One group of bars per tick, one color per name."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.5, 3.6), layout="constrained")
        axes = figure.subplots()
        width = 0.8 / max(1, len(groups))
        for place, (name, values) in enumerate(groups.items()):
            axes.bar([i - 0.4 + (place + 0.5) * width for i in range(len(values))], values, width, label=name)
        step = max(1, -(-len(ticks) // _MOST_TICKS))
        axes.set_xticks(range(0, len(ticks), step), list(ticks)[::step], rotation=30, ha="right")
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        legend(axes)
        return svg(figure)
