"""Reference of the clocked timing: given what was admitted and evicted, when copies are complete and what that costs.

Rules, from the cost model's documentation and DESIGN sections 4 and 6: a decode token costs other_token_ns before its
first event. An event takes other_layer_ns until its router has chosen; then it is looked up, and its copies are
enqueued on one queue, first come first served. A hit is an expert whose copy is complete by then. The event goes on for
the longer of its hits on the GPU and its misses on the CPU, and copy_event_ns for each copy on top. A slot that it
reads is free when its hits are done.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyanalysis.cost import CostModel
    from tests.reference.events import Event, Key


@dataclass
class Clocked:
    """Of one replay. Times in ns from the start; `ready` of each copy in the order of `admissions`."""

    hits: list[tuple[bool, ...]] = field(default_factory=list)
    enqueued: list[float] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)
    in_time: list[int] = field(default_factory=list)  # 1, 0; -1: no next event of its column, or evicted before it
    decode_ns: float = 0.0
    n_decode_tokens: int = 0


def clocked(
    events: list[Event],
    admissions: list[list[tuple[Key, Key | None]]],
    placed: list[Key],
    n_bytes: int,
    cost: CostModel,
) -> Clocked:
    """`admissions`: of each event, (newcomer, whose slot it takes or None) in order; `placed`: there from the start."""
    result = Clocked()
    complete_at: dict[Key, float] = dict.fromkeys(placed, 0.0)
    copy_of: dict[Key, int] = {}  # index of the newest copy of what is in the content
    copy_ns = cost.copy_latency_ns + n_bytes / cost.copy_bandwidth_bytes_per_s * 1e9
    now = queue_free = 0.0
    last_token = -1
    seen = set()
    for index, event in enumerate(events):
        if event.decode and event.token != last_token:
            now += cost.other_token_ns
            result.decode_ns += cost.other_token_ns
            result.n_decode_tokens += 1
            last_token = event.token
        lookup = now + cost.other_layer_ns
        for key, copy in copy_of.items():  # this is the next event of the column for copies not yet judged
            if key[0] == event.column and result.in_time[copy] == -1 and copy not in seen:
                result.in_time[copy] = int(complete_at[key] <= lookup)
                seen.add(copy)
        hits = tuple(complete_at.get(key, float("inf")) <= lookup for key in event.keys)
        n_hits, n_misses = sum(hits), len(hits) - sum(hits)
        cpu = cost.cpu_event_ns + n_misses * cost.cpu_miss_ns if n_misses else 0.0
        end = lookup + max(n_hits * cost.gpu_hit_ns, cpu) + len(admissions[index]) * cost.copy_event_ns
        read = {key for key, hit in zip(event.keys, hits, strict=True) if hit}
        for newcomer, victim in admissions[index]:
            begin = max(queue_free, lookup)
            if victim is not None:
                if victim in read:
                    begin = max(begin, lookup + n_hits * cost.gpu_hit_ns)
                del complete_at[victim]
                copy_of.pop(victim, None)
            queue_free = begin + copy_ns
            complete_at[newcomer] = queue_free
            copy_of[newcomer] = len(result.ready)
            result.enqueued.append(lookup)
            result.ready.append(queue_free)
            result.in_time.append(-1)
        if event.decode:
            result.decode_ns += end - now
        now = end
        result.hits.append(hits)
    return result
