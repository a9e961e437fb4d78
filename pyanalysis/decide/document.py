"""A report as a list of blocks that becomes Markdown or HTML: headings, paragraphs, lists, code, tables, figures."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from pyanalysis.report import page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyanalysis.report.tables import Table


@dataclass(frozen=True)
class Heading:
    text: str
    level: int


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Items:
    texts: Sequence[str]


@dataclass(frozen=True)
class Code:
    text: str


@dataclass(frozen=True)
class Shown:
    """A table; `folded` closed at first in HTML, `only_html` left out of Markdown."""

    table: Table
    caption: str = ""
    folded: bool = False
    only_html: bool = False


@dataclass(frozen=True)
class Drawing:
    """A plot as SVG: in HTML only, Markdown has its table."""

    svg: str


Block = Heading | Paragraph | Items | Code | Shown | Drawing


def as_markdown(title: str, blocks: Sequence[Block]) -> str:
    parts = [f"# {title}"]
    for block in blocks:
        if isinstance(block, Heading):
            parts.append(f"{'#' * block.level} {block.text}")
        elif isinstance(block, Paragraph):
            parts.append(block.text)
        elif isinstance(block, Items):
            parts.append("\n".join(f"- {text}" for text in block.texts))
        elif isinstance(block, Code):
            parts.append("\n".join(f"    {line}" for line in block.text.splitlines()))
        elif isinstance(block, Shown) and not block.only_html:
            parts += [block.caption] * bool(block.caption) + [_markdown_table(block.table)]
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table) -> str:
    def line(cells: Sequence[object]) -> str:
        shown = ("" if cell is None else str(cell).replace("|", "\\|") for cell in cells)
        return "| " + " | ".join(shown) + " |"

    rule = "|" + "---|" + "---:|" * (len(table.header) - 1)
    return "\n".join([line(table.header), rule, *map(line, table.rows)])


def as_html(title: str, blocks: Sequence[Block]) -> str:
    return page.page(title, [_html(block) for block in blocks])


def _html(block: Block) -> str:
    if isinstance(block, Heading):
        return page.heading(block.text, block.level)
    if isinstance(block, Paragraph):
        return page.paragraph(block.text)
    if isinstance(block, Items):
        return page.items(list(block.texts))
    if isinstance(block, Code):
        return f"<pre><code>{escape(block.text)}</code></pre>"
    return block.svg if isinstance(block, Drawing) else _html_table(block)


def _html_table(block: Shown) -> str:
    table = page.table(block.table, lambda value: "" if value is None else str(value))
    if block.folded:
        return page.folded(block.caption or "Table", table)
    caption = page.paragraph(block.caption) if block.caption else ""
    return f'{caption}<div style="overflow-x: auto">{table}</div>'
