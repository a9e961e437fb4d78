"""Capacities as users write them, as slots of each budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ggml_moecache import _native
from ggml_moecache.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyanalysis.simulation.stream import EventStream

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
    text = str(capacity)
    if text.endswith("%") and not _native.is_capacity(text) and text[:-1].replace(".", "", 1).isdigit():
        raise ConfigError(f"capacity must be a share of at most 100%. Got '{text}' instead.")
    if isinstance(capacity, bool) or text == "auto" or not _native.is_capacity(text):
        raise ConfigError(f"{_RULE}. Got {capacity!r} instead.")
    if text.endswith("%") and not stream.experts_known:
        raise ConfigError(
            f"{stream.trace}: a capacity in percent needs the number of experts, which the trace does not tell; "
            "give the capacity as a number, or add it with moecache trace convert --experts N"
        )
    if text.endswith("B") and any(size == 0 for _, size in budgets):
        raise ConfigError(
            f"{stream.trace}: capacity {text} needs the bytes of an expert, which neither the trace nor the cost model "
            "tells; give it as a number"
        )
    try:
        return tuple(_native.capacity_slots(list(stream.columns), per_layer, text))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _given(slots: list[int], experts: list[int]) -> tuple[int, ...]:
    if len(slots) != len(experts):
        raise ConfigError(f"capacity must list {len(experts)} numbers, one per budget. Got {len(slots)} instead.")
    for index, (slot, most) in enumerate(zip(slots, experts, strict=True)):
        if isinstance(slot, bool) or not isinstance(slot, (int, np.integer)) or not 0 <= slot <= most:
            raise ConfigError(f"capacity {index} must be a number of experts from 0 to {most}. Got {slot!r} instead.")
    return tuple(map(int, slots))
