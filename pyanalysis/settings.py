"""The plugin's variables as a program started from here would find them: value in force, default, misspelt names."""

from __future__ import annotations

import difflib
import json
import sys
from typing import TYPE_CHECKING

from ggml_moecache import _native

if TYPE_CHECKING:
    from collections.abc import Mapping

_PREFIX = "GGML_MOECACHE_"


def in_force(variable: _native.Variable, environment: Mapping[str, str]) -> str:
    """The value that counts; an empty one is none, and "" is returned where there is no default either."""
    return environment.get(variable.name) or variable.default


def unknown() -> list[str]:
    """A line for each variable of this process that begins as ours do and is none, with the name that may be meant."""
    # Without what all of them begin with, which would make any two alike.
    known = [variable.name.removeprefix(_PREFIX) for variable in _native.variables()]
    lines = []
    for name in _native.unknown_variables():
        meant = difflib.get_close_matches(name.removeprefix(_PREFIX), known, 1)
        hint = f"did you mean {_PREFIX}{meant[0]}?" if meant else "moecache config lists those that there are"
        lines.append(f"{name} is set and is no variable of ggml_moecache: it does nothing; {hint}")
    return lines


def warn_of_unknown() -> None:
    """Print those lines to stderr. The plugin says it too, without the hint, when a program loads it."""
    for line in unknown():
        print(f"moecache: warning: {line}", file=sys.stderr)


def as_text(environment: Mapping[str, str]) -> str:
    """Every variable with the value in force; those that differ from their defaults have a star."""
    lines = []
    n_changed = 0
    for variable in _native.variables():
        value = in_force(variable, environment)
        changed = value != variable.default
        n_changed += changed
        default = f"default {variable.default}" if variable.default else "no default"
        shown = f"{'*' if changed else ' '} {variable.name}={value}" if value else f"  {variable.name} is not set"
        lines += [f"{shown}  ({variable.values}; {default})", f"      {variable.summary}"]
    return "\n".join([*lines, "", f"* in the environment, not the default: {n_changed}"])


def as_json(environment: Mapping[str, str]) -> str:
    """An array with an object for each variable; `value`: in force, "" where there is none."""
    rows = []
    for variable in _native.variables():
        value = in_force(variable, environment)
        rows.append(
            {
                "name": variable.name,
                "value": value,
                "default": variable.default,
                "is_default": value == variable.default,
                "values": variable.values,
                "summary": variable.summary,
            }
        )
    return json.dumps(rows, indent=2)
