"""What the residency lines of a log say, by the rules of traces/FORMAT.md and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

FAMILIES = ("exps", "chexps")
FULL_EVERY = 1000  # generations

Line = dict[str, Any]
Experts = set[tuple[int, int, str]]  # layer, expert, family


def experts_of(items: list[list[int]]) -> Experts:
    return {(item[0], item[1], FAMILIES[item[2] if len(item) > 2 else 0]) for item in items}


def events_with_sets(lines: list[Line], *, one_run: bool = True) -> Iterator[tuple[Line, Experts | None]]:
    """Each event that was looked up in a cache, with the experts of its snapshot (None: not known, since not all
    changes are in the file yet). Checks the lines on the way: rising generations, the first one full, then every
    FULL_EVERY generations, changes that change something, in order, and each generation told once. `one_run` False: of
    several runs, the full set comes sooner at the beginning of each."""
    resident: Experts = set()
    generation = last_full = None
    for line in lines:
        if line["type"] == "residency":
            assert generation is None or line["generation"] > generation
            is_full = last_full is None or line["generation"] - last_full >= FULL_EVERY
            is_full |= not one_run and "full" in line
            assert ("full" in line) == is_full
            assert ("added" in line, "removed" in line) == (not is_full, not is_full)
            generation = line["generation"]
            for name in ("full", "added", "removed"):
                items = line.get(name, [])
                order = [(item[0], item[2] if len(item) > 2 else 0, item[1]) for item in items]
                assert order == sorted(set(order))
            if is_full:
                last_full = generation
                resident = experts_of(line["full"])
            else:
                added, removed = experts_of(line["added"]), experts_of(line["removed"])
                assert not added & resident
                assert removed <= resident
                resident = (resident | added) - removed
        elif line["type"] == "event" and line["resident_experts"] is not None:
            yield line, set(resident) if line["resident_experts"] == generation else None


def assert_hits_are_those_of_the_sets(lines: list[Line]) -> tuple[int, int]:
    """Every event hit what its snapshot had. A second use of an expert in one event is the CPU's. Returns (events whose
    snapshot is known, events whose is not)."""
    known = unknown = 0
    for event, resident in events_with_sets(lines):
        if resident is None:
            unknown += 1
            continue
        known += 1
        ids = event["expert_ids"]
        expected = [
            (event["layer_id"], expert, event["family"]) in resident and expert not in ids[:k]
            for k, expert in enumerate(ids)
        ]
        assert event["cache_hit"] == expected, (event["batch_id"], event["layer_id"])
    return known, unknown
