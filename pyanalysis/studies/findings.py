"""What a study hands back, and its report: README.md and index.html of the same blocks, a CSV per table, data.npz."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pyanalysis.decide.document import Drawing, Heading, Items, Paragraph, Shown, as_html, as_markdown
from pyanalysis.report.tables import Table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyanalysis.decide.document import Block
    from pyanalysis.report.tables import Value

    Array = np.ndarray[Any, np.dtype[Any]]


@dataclass
class Findings:
    """Blocks in order, tables with names of their own, and the arrays behind the plots by name."""

    title: str
    blocks: list[Block] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)
    _named: list[tuple[str, str | None]] = field(default_factory=list)  # (name, trace) of each table among the blocks

    def heading(self, text: str, level: int = 2) -> None:
        self.blocks.append(Heading(text, level))

    def say(self, text: str) -> None:
        self.blocks.append(Paragraph(text))

    def notes(self, texts: Sequence[str]) -> None:
        if texts:
            self.blocks.append(Items(tuple(texts)))

    def table(
        self,
        name: str,
        header: Sequence[str],
        rows: Sequence[Sequence[Value]],
        caption: str = "",
        *,
        trace: str | None = None,
    ) -> None:
        """Numbers are shown to four digits behind the point; the CSV has them in full.

        name    must be new, and the names of the columns all different
        trace   the table is the part of this one trace, under its heading: the parts of all traces have one name and
                one header, and are one table in CSV and JSON, whose first column `trace` they do not show
        """
        if any(one == name and (trace is None or of in (None, trace)) for one, of in self._named):
            raise ValueError(f"table {name} is there already")
        if len(set(header)) < len(header) or "" in header:
            raise ValueError(f"table {name} has columns without a name of their own")
        if any(len(row) != len(header) for row in rows):
            raise ValueError(f"table {name} has rows that are not as long as its header")
        self._named.append((name, trace))
        self.blocks.append(Shown(Table(name, list(header), [list(row) for row in rows]), caption))

    def tables(self) -> list[Table]:
        """As CSV and JSON have them, each name once."""
        found: dict[str, Table] = {}
        shown = (block.table for block in self.blocks if isinstance(block, Shown))
        for (name, trace), one in zip(self._named, shown, strict=True):
            if trace is None:
                found[name] = one
                continue
            whole = found.setdefault(name, Table(name, ["trace", *one.header], []))
            if whole.header[1:] != one.header:
                raise ValueError(f"table {name} has parts with other columns")
            found[name] = Table(name, whole.header, [*whole.rows, *([trace, *row] for row in one.rows)])
        return list(found.values())

    def draw(self, svg: str) -> None:
        self.blocks.append(Drawing(svg))

    def shown(self) -> list[Block]:
        """The blocks with rounded numbers, as people read them."""
        return [
            Shown(Table(b.table.name, b.table.header, [[_short(v) for v in row] for row in b.table.rows]), b.caption)
            if isinstance(b, Shown)
            else b
            for b in self.blocks
        ]

    def as_markdown(self) -> str:
        return as_markdown(self.title, self.shown())

    def as_json(self, facts: dict[str, Any]) -> str:
        """The tables and `facts` (arguments, time, memory) as one object."""
        rows = {one.name: [dict(zip(one.header, row, strict=True)) for row in one.rows] for one in self.tables()}
        value = {"title": self.title, **facts, "tables": rows}
        return json.dumps(value, indent=1, default=_plain) + "\n"

    def write(self, folder: Path, facts: dict[str, Any]) -> None:
        """Into an existing folder."""
        (folder / "README.md").write_text(self.as_markdown(), encoding="utf-8")
        (folder / "index.html").write_text(as_html(self.title, self.shown()), encoding="utf-8")
        (folder / "study.json").write_text(self.as_json(facts), encoding="utf-8")
        np.savez_compressed(folder / "data.npz", **self.arrays)  # type: ignore[arg-type] # numpy's own stub
        for table in self.tables():
            with (folder / f"{table.name}.csv").open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(table.header)
                writer.writerows(["" if v is None else v for v in row] for row in table.rows)


def _short(value: Value) -> Value:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, (int, np.integer)):
        return f"{int(value):,}"
    return f"{float(value):.4f}" if abs(value) < 1000 else f"{float(value):,.0f}"  # noqa: PLR2004 - digits that fit


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(type(value).__name__)
