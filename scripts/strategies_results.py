"""The report of moecache study strategies as two small files: README.md without plots and replays, and one JSON.

usage: scripts/strategies_results.py REPORT OUT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DIGITS = 5
PLOTS, REGIME, TIMES = "## Time per token against capacity", "## Operating regime", "## Time and memory"


def main(report: Path, out: Path) -> None:
    """Write OUT/README.md and OUT/strategies.json; without times and memory, which differ from run to run."""
    study = json.loads((report / "study.json").read_text(encoding="utf-8"))
    text = (report / "README.md").read_text(encoding="utf-8")
    kept = text.split(PLOTS)[0] + REGIME + text.split(REGIME)[1].split(TIMES)[0].rstrip()
    note = "Every replay, by capacity: `strategies.json`. Made by `scripts/strategies`."
    out.mkdir(parents=True, exist_ok=True)
    (out / "README.md").write_text(f"{kept}\n\n{note}\n", encoding="utf-8")
    tables = {name: columns(rows) for name, rows in study["tables"].items()}
    result = {"command": study["command"], "tables": tables}
    (out / "strategies.json").write_text(json.dumps(result, separators=(",", ":")) + "\n", encoding="utf-8")


def columns(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A table by columns, numbers to DIGITS digits; texts that repeat as places in a list of them."""
    found: dict[str, Any] = {}
    for name in rows[0] if rows else ():
        values = [row[name] for row in rows]
        if all(isinstance(value, str) for value in values):
            names = list(dict.fromkeys(values))
            found[name] = {"names": names, "of": [names.index(value) for value in values]}
        else:
            found[name] = [float(f"{v:.{DIGITS}g}") if isinstance(v, float) else v for v in values]
    return found


if __name__ == "__main__":
    if len(sys.argv) != 3:  # noqa: PLR2004 - a report and a folder
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
