"""Writing the report of a sweep: index.html and one CSV per table, in a folder that appears whole or not at all."""

from __future__ import annotations

import contextlib
import csv
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ggml_moecache.errors import ConfigError
from pyanalysis.report import page, plots, tables
from pyanalysis.report.curves import policies_of
from pyanalysis.simulation.output import as_csv, as_jsonl, regime_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyanalysis.cost import CostModel
    from pyanalysis.report.curves import Sensitivity
    from pyanalysis.report.tables import Table, Value
    from pyanalysis.simulation.result import SimulationResult


def write_report(
    folder: Path,
    results: Sequence[SimulationResult],
    *,
    cost: CostModel | None = None,
    sensitivity: Mapping[str, Sequence[Sensitivity]] | None = None,
    targets: Sequence[float] = (0.5, 0.8, 0.9, 0.95),
    notes: Sequence[str] = (),
    force: bool = False,
) -> Path:
    """Write the report of all `results` and return its page.

    sensitivity  by trace
    targets      hit rates, 0 to 1
    notes        shown at the top
    Raises ConfigError if the folder exists (unless `force`, which replaces only a report) or cannot be written.
    """
    with new_folder(folder, force=force) as staged:
        _write(staged, results, cost, sensitivity or {}, targets, notes)
    return folder / "index.html"


@contextlib.contextmanager
def new_folder(folder: Path, *, force: bool) -> Iterator[Path]:
    """A folder to write a report to, which becomes `folder` at the end. Raises ConfigError as write_report does."""
    refuse_existing(folder, force=force)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise ConfigError(f"--report '{folder}' cannot be written: {error.strerror}") from None
    try:
        yield staged
        staged.chmod(0o755)  # mkdtemp made it its owner's only
        if folder.exists():
            shutil.rmtree(folder)
        staged.rename(folder)
    except OSError as error:
        raise ConfigError(f"--report '{folder}' cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def refuse_existing(folder: Path, *, force: bool) -> None:
    """Raises ConfigError unless the report may be written there."""
    if not folder.exists():
        return
    is_report = folder.is_dir() and ((folder / "index.html").exists() or not any(folder.iterdir()))
    if not is_report:
        raise ConfigError(f"--report '{folder}' exists and is no report; name another folder.")
    if not force and any(folder.iterdir()):
        raise ConfigError(f"--report '{folder}' exists already; name another folder, or say --force to replace it.")


def _write(  # noqa: PLR0917 - what write_report was given
    folder: Path,
    results: Sequence[SimulationResult],
    cost: CostModel | None,
    sensitivity: Mapping[str, Sequence[Sensitivity]],
    targets: Sequence[float],
    notes: Sequence[str],
) -> None:
    (folder / "results.csv").write_text(as_csv(results), encoding="utf-8")
    (folder / "results.jsonl").write_text(as_jsonl(results), encoding="utf-8")
    parts = [page.items(list(notes))] if notes else []
    if cost:
        parts += [page.paragraph(f"Costs: {cost.name}. {cost.description}."), page.items(cost.sources)]
    traces = list(dict.fromkeys(result.trace for result in results))
    for number, name in enumerate(traces, 1):
        own = [result for result in results if result.trace == name]
        place = folder / str(number) if len(traces) > 1 else folder
        place.mkdir(exist_ok=True)
        parts += _trace_parts(place, own, sensitivity.get(name, ()), targets)
    title = "moecache simulate" if len(traces) > 1 else f"moecache simulate: {Path(traces[0]).name}"
    (folder / "index.html").write_text(page.page(title, parts), encoding="utf-8")


def _trace_parts(
    folder: Path, results: Sequence[SimulationResult], sensitivity: Sequence[Sensitivity], targets: Sequence[float]
) -> list[str]:
    first = results[0]
    parts = [page.heading(first.trace, 2), page.paragraph(_facts(first))]
    if regime := regime_of(results):
        parts.append(page.paragraph(f"Operating regime: {regime}."))

    def section(title: str, svg: str, table: Table, form: Callable[[Value], str]) -> None:
        _save(folder, table)
        parts.extend([page.heading(title, 3), svg, page.folded("Table", page.table(table, form))])

    section("Hit rate", plots.hit_rates(results), tables.hit_rates(results), _rate)
    if any(result.policy == "hindsight-static" for result in results):
        parts.append(
            page.paragraph(
                "hindsight-static has its experts before the first event; the others, the optimum too, begin with "
                "empty slots. On a short trace it can therefore lie above the optimum."
            )
        )
    wanted = tables.reached(results, targets)
    _save(folder, wanted)
    parts += [
        page.heading("Experts needed for a hit rate", 3),
        page.paragraph("Smallest simulated capacity that reaches it, or the range since the largest too small."),
        page.table(wanted, str),
    ]
    copied = tables.copied(results)
    section("Copied" if copied.name == "copy_bytes" else "Copies", plots.copied(results), copied, _count)
    if all(result.time_per_token_ns is not None for result in results):
        section("Time per token", plots.times(results), tables.times(results), _microseconds)
    else:
        parts.append(page.paragraph("Time per token: no cost model was given (--cost), or no token was decoded."))
    if sensitivity:
        table = tables.sensitivity(sensitivity)
        _save(folder, table)
        parts += [
            page.heading("Sensitivity", 3),
            page.paragraph("Change of the time per token when one cost is halved or doubled. A cost of 0 is left out."),
            page.table(table, _change),
        ]
    for number, policy in enumerate(policies_of(results), 1):
        table = tables.heat_map(results, policy, number)
        section(f"Hit rate of each layer: {policy}", plots.heat_map(results, policy), table, _rate)
    return parts


def _facts(result: SimulationResult) -> str:
    budget = "a budget of its own for each layer" if result.per_layer else "one budget for all layers"
    mode = {
        "event-atomic": "event by event",
        "as-run": "in the ubatches of the run, as the runtime takes them",
        "per-access": "access by access, a comparison only",
    }[result.mode]
    return (
        f"{result.n_tokens:,} tokens, {result.n_decode_tokens:,} of them decoded; {result.n_events:,} events over "
        f"{len(result.layers)} layers; {budget}; {result.timing} timing; replayed {mode}."
    )


def _save(folder: Path, table: Table) -> None:
    with (folder / f"{table.name}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(table.header)
        writer.writerows(["" if value is None else value for value in row] for row in table.rows)


def _rate(value: Value) -> str:
    return "" if value is None else f"{value:.4f}" if isinstance(value, float) else f"{value:,}"


def _count(value: Value) -> str:
    return "" if value is None else f"{value:,}"


def _microseconds(value: Value) -> str:
    return "" if value is None else f"{value / 1000:,.1f} us" if isinstance(value, float) else f"{value:,}"


def _change(value: Value) -> str:
    return "" if not isinstance(value, float) else f"{value:+.1%}"
