"""Capacities as users write them, as slots of each budget."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from ggml_moecache import _native
from ggml_moecache.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyanalysis.simulation.stream import EventStream

_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)(KiB|MiB|GiB|TiB)")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)%")
_RULE = "capacity must be a number of experts, all, a share like 5%, a size like 2GiB, or a list of numbers"


def capacities_of(capacities: int | str | Iterable[Any]) -> list[Any]:
    """Capacities as a list, or as one string by comma, ranges included; not yet checked. Raises ConfigError."""
    if isinstance(capacities, str):
        return [one for part in capacities.split(",") for one in _items(part.strip())]
    if isinstance(capacities, (int, np.integer)):
        return [capacities]
    try:
        return list(capacities)
    except TypeError:
        raise ConfigError(f"capacities must be a list, or one {_RULE.removeprefix('capacity must be ')}") from None


def _items(text: str) -> Iterator[str | int | list[int]]:
    """The capacities of one item of a string by comma."""
    for sign, what in ((":", "a range A:B or A:B:STEP"), ("+", "whole numbers joined by +")):
        if sign not in text:
            continue
        parts = text.split(sign)
        if not all(part.isascii() and part.isdigit() for part in parts) or (sign == ":" and len(parts) > 3):  # noqa: PLR2004
            raise ConfigError(f"capacity: '{text}' must be {what}, of whole numbers of at least 0")
        numbers = [int(part) for part in parts]
        if sign == "+":
            yield numbers
            return
        if (len(numbers) == 3 and numbers[2] == 0) or not range(*numbers):  # noqa: PLR2004
            raise ConfigError(f"capacity: the range '{text}' is empty (A:B excludes B)")
        yield from range(*numbers)
        return
    if text == "":
        raise ConfigError("capacity has an empty item: name a number of experts, all, a share or memory")
    yield int(text) if text.isascii() and text.isdigit() else text


def slots_of(stream: EventStream, capacity: int | str | Sequence[int], *, per_layer: bool) -> tuple[int, ...]:
    """Slots of each budget (one per layer and family, or one per size of expert). Raises ConfigError.

    A number or share is of each layer with per_layer, of all layers together without; a size is always of all layers
    together, and with per_layer each gets an equal part of it. Layers with fewer experts than a number get all theirs.
    Where experts differ in size and a budget is for all layers, the sizes share in proportion to their experts.
    """
    budgets = _native.budgets(list(stream.columns), per_layer)
    experts = [n for n, _ in budgets]
    if isinstance(capacity, np.integer):
        capacity = int(capacity)
    if isinstance(capacity, (list, tuple, range, np.ndarray)):
        return _given(list(capacity), experts)
    if not isinstance(capacity, (int, str)):
        raise ConfigError(f"{_RULE}. Got {capacity!r} instead.")
    if isinstance(capacity, str) and capacity.isascii() and capacity.isdigit():
        capacity = int(capacity)
    if isinstance(capacity, bool) or (isinstance(capacity, int) and capacity < 0):
        raise ConfigError(f"{_RULE}. Got {capacity!r} instead.")
    if isinstance(capacity, int):
        return _number(capacity, experts, per_layer=per_layer)
    if capacity == "all":
        return tuple(experts)
    if match := _PERCENT.fullmatch(capacity):
        return _share(stream, float(match[1]), experts)
    if match := _SIZE.fullmatch(capacity):
        n_bytes = math.floor(float(match[1]) * _UNITS[match[2]])
        return _size(stream, capacity, n_bytes, budgets, per_layer=per_layer)
    raise ConfigError(f"{_RULE}. Got {capacity!r} instead.")


def _given(slots: list[int], experts: list[int]) -> tuple[int, ...]:
    if len(slots) != len(experts):
        raise ConfigError(f"capacity must list {len(experts)} numbers, one per budget. Got {len(slots)} instead.")
    for index, (slot, most) in enumerate(zip(slots, experts, strict=True)):
        if isinstance(slot, bool) or not isinstance(slot, (int, np.integer)) or not 0 <= slot <= most:
            raise ConfigError(f"capacity {index} must be a number of experts from 0 to {most}. Got {slot!r} instead.")
    return tuple(map(int, slots))


def _number(number: int, experts: list[int], *, per_layer: bool) -> tuple[int, ...]:
    most = max(experts) if per_layer else sum(experts)
    if number > most:
        where = "of a layer" if per_layer else "of all layers"
        raise ConfigError(f"capacity must be at most the {most} experts {where}. Got {number} instead.")
    if per_layer:
        return tuple(min(number, n) for n in experts)
    return _apportion(number, experts)


def _apportion(number: int, experts: list[int]) -> tuple[int, ...]:
    """`number` slots in proportion to `experts`; the rest goes to the largest remainders, earlier ones first."""
    total = sum(experts)
    slots = [number * n // total for n in experts]
    remainders = sorted(range(len(experts)), key=lambda i: (-(number * experts[i] % total), i))
    for index in remainders[: number - sum(slots)]:
        slots[index] += 1
    return tuple(slots)


def _share(stream: EventStream, percent: float, experts: list[int]) -> tuple[int, ...]:
    if not 0 < percent <= 100:  # noqa: PLR2004 - per cent
        raise ConfigError(f"capacity must be a share in (0%, 100%]. Got '{percent:g}%' instead.")
    if not stream.experts_known:
        raise ConfigError(
            f"{stream.trace}: a capacity in percent needs the number of experts, which the trace does not tell; "
            "give the capacity as a number, or add it with moecache trace convert --experts N"
        )
    return tuple(max(1, math.floor(n * percent / 100 + 0.5)) for n in experts)


def _size(
    stream: EventStream, text: str, n_bytes: int, budgets: list[tuple[int, int]], *, per_layer: bool
) -> tuple[int, ...]:
    if any(size == 0 for _, size in budgets):
        raise ConfigError(
            f"{stream.trace}: capacity {text} needs the bytes of an expert, which neither the trace nor the cost model "
            "tells; give it as a number"
        )
    if per_layer:
        return tuple(min(n, n_bytes // len(budgets) // size) for n, size in budgets)
    total = sum(n * size for n, size in budgets)
    if n_bytes >= total:
        return tuple(n for n, _ in budgets)
    slots = [n * n_bytes // total for n, _ in budgets]
    left = n_bytes - sum(slot * size for slot, (_, size) in zip(slots, budgets, strict=True))
    for index, (n, size) in enumerate(budgets):
        more = min(n - slots[index], left // size)
        slots[index] += more
        left -= more * size
    return tuple(slots)
