"""Results of simulations as text and files: an aligned table, CSV, JSON Lines, Parquet."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from pyanalysis.simulation import regime
from pyanalysis.simulation.regime import Regime
from pyanalysis.simulation.result import RESULT_SCHEMA, results_to_arrow

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyanalysis.simulation.result import SimulationResult
    from pyanalysis.simulation.targets import TargetCapacity

FORMATS = ("table", "csv", "jsonl", "parquet")
# CSV has no lists: the rates of single layers are in jsonl and parquet.
CSV_NAMES = tuple(name for name in RESULT_SCHEMA.names if name not in ("slots", "layers"))


def as_jsonl(results: Sequence[SimulationResult], targets: Mapping[str, Sequence[TargetCapacity]] | None = None) -> str:
    """One JSON object per line: trace, policy and capacity with every count, and `layers`.

    `targets` of each trace follow its results; these lines have target_hit_rate.
    """
    lines = []
    for name in dict.fromkeys(result.trace for result in results):
        lines += [json.dumps(result.row()) for result in results if result.trace == name]
        lines += [json.dumps(one.row()) for one in (targets or {}).get(name, ())]
    return "".join(line + "\n" for line in lines)


def as_csv(results: Sequence[SimulationResult], *, header: bool = True) -> str:
    """One row per result, CSV_NAMES; what is not known is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(CSV_NAMES)
    for result in results:
        row = result.row()
        writer.writerow(["" if row[name] is None else row[name] for name in CSV_NAMES])
    return text.getvalue()


def as_parquet(results: Sequence[SimulationResult]) -> bytes:
    """A Parquet file of RESULT_SCHEMA."""
    buffer = io.BytesIO()
    pq.write_table(results_to_arrow(list(results)), buffer, compression="zstd")
    return buffer.getvalue()


# --- table ----------------------------------------------------------------------------------------------------------

# Header and text of each column; a column of which no result knows anything is left out.
_COLUMNS: tuple[tuple[str, Callable[[SimulationResult], str | None]], ...] = (
    ("policy", lambda r: r.policy),
    ("capacity", lambda r: r.capacity),
    ("experts", lambda r: f"{r.capacity_experts:,}"),
    ("hit rate", lambda r: f"{r.hit_rate:.4f}"),
    ("decode", lambda r: None if r.decode_hit_rate is None else f"{r.decode_hit_rate:.4f}"),
    ("admissions", lambda r: f"{r.admissions:,}"),
    ("evictions", lambda r: f"{r.evictions:,}"),
    ("copies", lambda r: f"{r.copies:,}"),
    ("copied MiB", lambda r: None if r.copy_bytes is None else f"{r.copy_bytes / 2**20:,.1f}"),
    ("late", lambda r: f"{r.copies_late:,}" if r.timing == "clocked" else None),
    ("CPU fallbacks", lambda r: f"{r.cpu_fallbacks:,}"),
    ("victims", lambda r: None if r.victim_agreement is None else f"{r.victim_agreement:.1%}"),
    ("us/token", lambda r: None if r.time_per_token_ns is None else f"{r.time_per_token_ns / 1000:,.1f}"),
    ("t/s", lambda r: None if r.tokens_per_s is None else f"{r.tokens_per_s:,.1f}"),
)
_N_TEXT = 2  # policy and capacity stand left, numbers right


def as_table(results: Sequence[SimulationResult], targets: Mapping[str, Sequence[TargetCapacity]] | None = None) -> str:
    """The results of each trace as an aligned table under the trace's name and what holds for all of its rows.

    `targets` of each trace are a second table under it.
    """
    parts = []
    for name in dict.fromkeys(result.trace for result in results):
        parts.append(_table_of_trace([r for r in results if r.trace == name]))
        if targets and name in targets:
            parts.append(_table_of_targets(targets[name]))
    return "\n\n".join(parts)


def _table_of_targets(found: Sequence[TargetCapacity]) -> str:
    rows = [["policy", "found among", "target", "experts", "hit rate"]]
    rows += [
        [
            *(one.policy, "every capacity" if one.exact else "those simulated", f"{one.target_hit_rate:.1%}"),
            "none" if one.capacity_experts is None else f"{one.capacity_experts:,}",
            "-" if one.hit_rate is None else f"{one.hit_rate:.4f}",
        ]
        for one in found
    ]
    return "\n".join(["smallest capacity that reaches a hit rate:", "", *aligned(rows, _N_TEXT)])


def _table_of_trace(results: list[SimulationResult]) -> str:
    cells = [[text(result) for _, text in _COLUMNS] for result in results]
    shown = [place for place in range(len(_COLUMNS)) if any(row[place] is not None for row in cells)]
    rows = [[_COLUMNS[place][0] for place in shown], *[[row[place] or "-" for place in shown] for row in cells]]
    return "\n".join([_head(results[0]), *filter(None, [regime_of(results)]), "", *aligned(rows, _N_TEXT)])


def regime_of(results: Sequence[SimulationResult]) -> str:
    """The operating regime of one trace at each of its capacities, as a line; "" where no token was decoded."""
    at = {
        result.capacity: Regime(result.step_experts_over_slots, result.steps_above_slots or 0.0)
        for result in results
        if result.step_experts_over_slots is not None
    }
    return regime.line(results[0].step, at.items(), per_layer=results[0].per_layer)


def _head(result: SimulationResult) -> str:
    budget = "of each layer" if result.per_layer else "of all layers together"
    cost = f", costs of {result.cost}" if result.cost else ""
    mode = {
        "event-atomic": "",
        "as-run": f", ubatches as the runtime takes them ({result.n_tokens_passed_by:,} tokens passed the cache by)",
        "per-access": ", PER ACCESS: a comparison, not what a runtime can do",
    }[result.mode]
    return (
        f"{result.trace}: {result.n_tokens:,} tokens ({result.n_decode_tokens:,} decode), {result.n_events:,} events; "
        f"experts {budget}, {result.timing} timing{cost}{mode}"
    )


def aligned(rows: Sequence[Sequence[str]], n_text: int) -> list[str]:
    """Lines whose columns stand under each other, the first `n_text` left, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:<{width}}" if place < n_text else f"{cell:>{width}}"
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
