"""One line of a routing log, read and checked by itself. This is the authority on what a valid line is.

`table.py` checks the same rules on whole columns, and hands any chunk that it is not sure about to this module.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyanalysis.traces.event import PHASES, RECORDS, Field

if TYPE_CHECKING:
    from collections.abc import Callable

_SHOWN_CHARACTERS = 40
LARGEST_FLOAT32 = 3.4028235677973366e38  # halfway to the next power of two: what rounds to a finite float32
_INT_LIMITS = {"int32": 2**31, "int64": 2**63}


class LineError(ValueError):
    """The reason why a line is not valid."""


class TruncatedLineError(LineError):
    """The line is no JSON: what a line that was cut off looks like."""


def shown(value: object) -> str:
    """`value` as JSON, shortened for a message."""
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def _is_int(value: object, kind: str, minimum: int) -> bool:
    return type(value) is int and minimum <= value < _INT_LIMITS[kind]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != "" and not any("\ud800" <= c <= "\udfff" for c in value)


def _is_weight(value: object) -> bool:
    return type(value) in (int, float) and abs(value) < LARGEST_FLOAT32  # type: ignore[arg-type] # a number by now


def _is_expert(value: object) -> bool:
    """[layer, expert] or [layer, expert, family], whose 0 is left out."""
    if not isinstance(value, list) or len(value) not in (2, 3) or not all(_is_int(v, "int32", 0) for v in value):
        return False
    return value[2:] != [0]


def _is_list(check: Callable[[object], bool]) -> Callable[[object, Field], bool]:
    return lambda value, _: isinstance(value, list) and all(map(check, value))


# Kind of a field: what is wrong in words, and the check.
_KINDS: dict[str, tuple[str, Callable[[object, Field], bool]]] = {
    "text": ("a string that is not empty", lambda value, _: _is_text(value)),
    "phase": (" or ".join(f'"{phase}"' for phase in PHASES), lambda value, _: value in PHASES),
    "int32": ("a whole number of at least {minimum}", lambda value, f: _is_int(value, "int32", f.minimum)),
    "int64": ("a whole number of at least {minimum}", lambda value, f: _is_int(value, "int64", f.minimum)),
    "flag": ("true or false", lambda value, _: isinstance(value, bool)),
    "ids": ("a list of whole numbers of at least 0", _is_list(lambda v: _is_int(v, "int32", 0))),
    "weights": ("a list of float32 numbers", _is_list(_is_weight)),
    "flags": ("a list of true and false", _is_list(lambda v: isinstance(v, bool))),
    "experts": ("a list of [layer, expert] or [layer, expert, family]", _is_list(_is_expert)),
}


def _refuse_constant(name: str) -> float:
    raise LineError(f"not JSON: {name} is no number")


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of JSON's pairs. Raises LineError if a name is there twice: readers would differ in which counts."""
    record = dict(pairs)
    if len(record) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise LineError(f"the field {shown(twice)} stands there twice")
    return record


def parse_line(line: bytes) -> dict[str, Any]:
    """The object of `line` (without its line end), valid for its type.

    Raises LineError with the reason, TruncatedLineError if the line is no JSON at all.
    """
    if not line.strip():
        raise LineError("the line is empty")
    try:
        record = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=unique)
    except UnicodeDecodeError as error:
        raise TruncatedLineError(f"not UTF-8: {error.reason} at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        raise TruncatedLineError(f"not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise LineError("not a record: nested too deeply") from None
    except ValueError as error:
        if isinstance(error, LineError):
            raise
        raise LineError(f"not a record: {error}") from None  # int of more than 4,300 digits
    check_record(record)
    checked: dict[str, Any] = record
    return checked


def check_record(record: object) -> None:
    """Raise LineError with the reason unless `record` is a valid line's object."""
    if not isinstance(record, dict):
        raise LineError("not a record: a line must be one JSON object")
    kind = record.get("type")
    if not _is_text(kind):
        if "type" in record:
            raise LineError(f"type must be a string that is not empty, got {shown(kind)}")
        raise LineError("not a record of a routing log: it lacks the field type")
    assert isinstance(kind, str)  # noqa: S101 - tells mypy what _is_text has found
    for known in RECORDS.get(kind, ()):
        _check_field(kind, known, record)
    if kind == "event":
        _check_event(record)
    elif kind == "residency" and "full" not in record and not {"added", "removed"} <= record.keys():
        raise LineError("residency needs the field full, or the fields added and removed")
    try:
        json.dumps(record, allow_nan=False)
    except ValueError:
        raise LineError("a number is too large") from None


def _check_field(kind: str, known: Field, record: dict[str, Any]) -> None:
    if known.name not in record:
        if known.required:
            raise LineError(f"{kind} lacks the field {known.name}")
        return
    value = record[known.name]
    if value is None and known.nullable:
        return
    words, check = _KINDS[known.kind]
    if not check(value, known):
        words = words.format(minimum=known.minimum) + (" or null" if known.nullable else "")
        raise LineError(f"{known.name} must be {words}, got {shown(value)}")


def _check_event(record: dict[str, Any]) -> None:
    k = len(record["expert_ids"])
    if k == 0:
        raise LineError("expert_ids is empty")
    weights = record["router_weights"]
    if weights is not None and len(weights) != k:
        raise LineError(f"router_weights has {len(weights)} entries, expert_ids has {k}")
    hits = record["cache_hit"]
    if hits and len(hits) != k:
        raise LineError(f"cache_hit has {len(hits)} entries, expert_ids has {k}")


def split(record: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """`record` as (the fields its type knows, type included; all others)."""
    if record["type"] not in RECORDS:
        return {"type": record["type"]}, {name: value for name, value in record.items() if name != "type"}
    names = {"type", *(known.name for known in RECORDS[record["type"]])}
    return (
        {name: value for name, value in record.items() if name in names},
        {name: value for name, value in record.items() if name not in names},
    )
