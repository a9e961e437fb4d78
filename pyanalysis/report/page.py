"""The HTML of the report."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyanalysis.report.tables import Table, Value

_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em; color: #222; }}
h2 {{ border-top: 1px solid #ccc; padding-top: 1em; margin-top: 2em; }}
svg {{ max-width: 100%; height: auto; }}
table {{ border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .15em .7em; text-align: right; border-bottom: 1px solid #eee; }}
th:first-child, td:first-child {{ text-align: left; }}
details {{ margin: .5em 0 1.5em; overflow-x: auto; }}
summary {{ cursor: pointer; color: #555; }}
code {{ background: #f4f4f4; padding: .1em .3em; }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def page(title: str, parts: Sequence[str]) -> str:
    return _PAGE.format(title=escape(title), body="\n".join(parts))


def heading(text: str, level: int) -> str:
    return f"<h{level}>{escape(text)}</h{level}>"


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def items(texts: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"


def table(one: Table, form: Callable[[Value], str]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in one.header)
    rows = (
        "<tr>"
        + "".join(f"<td>{escape(value if isinstance(value, str) else form(value))}</td>" for value in row)
        + "</tr>"
        for row in one.rows
    )
    return f"<table>\n<tr>{head}</tr>\n" + "\n".join(rows) + "\n</table>"


def folded(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>\n{content}\n</details>"
