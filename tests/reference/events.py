"""Events of a trace as the policies see them (DESIGN section 4; contract above the table of reference hit rates)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from pyanalysis.traces import Trace

Key = tuple[int, int]  # (column, expert); a column is a layer and family, in rising order


@dataclass(frozen=True)
class Event:
    """One routing decision, or the union of those of one prefill batch.

    `token`: tokens are numbered from 0 as they first appear; the largest number in this event or any before it.
    `ids`: each expert once, in the order of its last appearance, so that the later one is the more recently used.
    """

    column: int
    token: int
    request: int
    decode: bool
    ids: tuple[int, ...]

    @property
    def keys(self) -> list[Key]:
        return [(self.column, expert) for expert in self.ids]


def by_last_appearance(ids: list[int]) -> tuple[int, ...]:
    last = {expert: place for place, expert in enumerate(ids)}
    return tuple(sorted(last, key=last.__getitem__))


def events_of(trace: Trace, batch_size: int = 512) -> list[Event]:
    """The events in the order of the trace.

    Prefill tokens of one ubatch are one event per column. Where ubatches are not recorded, `batch_size` prefill tokens
    of a request in a row are a batch.
    """
    column, _ = trace.columns
    batches = _prefill_batches(trace, batch_size)
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index in range(trace.n_events):
        token = int(trace.tokens.of_event[index])
        is_decode = trace.phase[index] == 1
        group = (1, index, 0) if is_decode else (0, batches[token], int(column[index]))
        groups[group].append(index)
    events = []
    # An event stands where its first row stands; a batch that was made here has its columns one after another.
    place = {group: rows[0] for group, rows in groups.items()}
    if trace.n_events and trace.batch.min() < 0:
        first = {}
        for (kind, batch, _), rows in groups.items():
            if kind == 0:
                first[batch] = min(first.get(batch, rows[0]), rows[0])
        place = {
            group: (first[group[1]] if group[0] == 0 else rows[0], group[2] if group[0] == 0 else 0)
            for group, rows in groups.items()
        }
    number: dict[int, int] = {}
    clock = 0
    for group in sorted(groups, key=place.__getitem__):
        rows = groups[group]
        tokens = [int(trace.tokens.of_event[row]) for row in rows]
        clock = max(clock, *(number.setdefault(token, len(number)) for token in tokens))
        ids = [int(i) for row in rows for i in trace.ids[row] if i >= 0]
        events.append(
            Event(
                column=int(column[rows[0]]),
                token=clock,
                request=int(trace.request[rows[-1]]),
                decode=group[0] == 1,
                ids=by_last_appearance(ids),
            )
        )
    return events


def _prefill_batches(trace: Trace, batch_size: int) -> list[int]:
    """Batch of each token; those of tokens that are decoded are not used."""
    if trace.n_events == 0 or trace.batch.min() >= 0:
        return trace.tokens.batch.tolist()
    result, current, length, request = [], -1, 0, None
    for token in range(len(trace.tokens)):
        is_prefill = trace.tokens.phase[token] == 0
        if not is_prefill:
            result.append(-1)
            request = None
            continue
        if request != trace.tokens.request[token] or length == batch_size:
            current, length, request = current + 1, 0, trace.tokens.request[token]
        length += 1
        result.append(current)
    return result
