"""The plots of the report as SVG, drawn by matplotlib, the same bytes for the same results."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from pyanalysis.report.curves import curve_of, policies_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from matplotlib.axes import Axes

    from pyanalysis.simulation.result import SimulationResult

# Text stays text, so that the page can be searched and is small; ids do not depend on the process.
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "moecache",
    "axes.grid": True,
    "grid.alpha": 0.3,
    "font.size": 9,
}
_SIZE = (7.5, 4.2)  # inches
_COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#17becf", "#bcbd22")
# The two lines that others are compared with: what no policy can exceed, and what no policy is needed for.
_BOUNDS = {"belady": ("black", "-"), "hindsight-static": ("#d62728", "--")}


def hit_rates(results: Sequence[SimulationResult]) -> str:
    """Hit rate against capacity."""
    return _lines(results, "hit rate (%)", lambda r: 100 * r.hit_rate)


def copied(results: Sequence[SimulationResult]) -> str:
    """MiB copied per token against capacity; copies where the size of an expert is not known."""
    if any(result.copy_bytes is None for result in results):
        return _lines(results, "copies per token", lambda r: r.copies / r.n_tokens)
    return _lines(results, "MiB copied per token", lambda r: (r.copy_bytes or 0) / r.n_tokens / 2**20)


def times(results: Sequence[SimulationResult]) -> str:
    """Time per decode token against capacity. Every result must have one."""
    return _lines(results, "time per token (ms)", lambda r: (r.time_per_token_ns or 0) / 1e6)


def _color(policy: str, others: list[str]) -> tuple[str, str]:
    if policy in _BOUNDS:
        return _BOUNDS[policy]
    place = others.index(policy)
    return _COLORS[place % len(_COLORS)], ("-", ":", "-.")[place // len(_COLORS) % 3]


def _lines(results: Sequence[SimulationResult], label: str, value: Callable[[SimulationResult], float]) -> str:
    curves = {policy: curve_of(results, policy) for policy in policies_of(results)}
    points = {policy: [(r.capacity_experts, value(r)) for r in curve] for policy, curve in curves.items()}
    return lines(points, f"experts with a slot{' per layer' if results[0].per_layer else ''}", label)


def lines(curves: Mapping[str, Sequence[tuple[float, float]]], x_label: str, y_label: str, *, marker: str = ".") -> str:
    """One line of (x, y) for each policy that has points; without a marker (an empty string) half the bytes."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=_SIZE, layout="constrained")
        axes = figure.subplots()
        others = [policy for policy in curves if policy not in _BOUNDS]
        for policy, points in curves.items():
            if not points:
                continue
            color, style = _color(policy, others)
            x, y = zip(*points, strict=True)
            axes.plot(x, y, style, color=color, marker=marker, label=policy)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.set_ylim(bottom=0)
        legend(axes)
        return svg(figure)


def legend(axes: Axes) -> None:
    """The legend of what is drawn; where nothing is, the plot says so (matplotlib would warn on stderr)."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)
    elif not axes.has_data():
        axes.text(0.5, 0.5, "nothing to draw", ha="center", transform=axes.transAxes)


def heat_map(results: Sequence[SimulationResult], policy: str) -> str:
    """Hit rate of each layer (rows) at each capacity (columns) of one policy."""
    curve = curve_of(results, policy)
    layers = [layer_name(one.layer, one.family) for one in curve[0].layers]
    values = 100 * np.array([[one.hit_rate for one in result.layers] for result in curve]).T
    with mpl.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(_SIZE[0], 1.2 + 0.14 * len(layers)), layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(values, aspect="auto", vmin=0, vmax=100, cmap="viridis", interpolation="nearest")
        _ticks(axes.set_xticks, [f"{result.capacity_experts:,}" for result in curve], 16)
        _ticks(axes.set_yticks, layers, 40)
        axes.set_xlabel(f"experts with a slot{' per layer' if results[0].per_layer else ''}")
        axes.set_ylabel("layer")
        figure.colorbar(image, label=f"hit rate of {policy} (%)")
        return svg(figure)


def layer_name(layer: int, family: str) -> str:
    """The layer, with its family where it is not the usual one."""
    return str(layer) if family == "exps" else f"{layer} {family}"


def _ticks(set_ticks: Any, labels: list[str], most: int) -> None:  # noqa: ANN401 - a bound method of matplotlib
    step = -(-len(labels) // most)
    set_ticks(range(0, len(labels), step), labels[::step])


def svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()[text.getvalue().index("<svg") :]
