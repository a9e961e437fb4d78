"""References of the policies that know the whole trace. `place` is an event's index among all events of its budget."""

from __future__ import annotations

import bisect
import math
from collections import Counter, defaultdict
from typing import Any

from tests.reference.events import Event, Key
from tests.reference.online import Policy, Ranked


class Future:
    """When each expert is used: (places, tokens), both rising."""

    def __init__(self, events: list[Event]) -> None:
        self.places: dict[Key, list[int]] = defaultdict(list)
        self.token = [event.token for event in events]
        for place, event in enumerate(events):
            for key in event.keys:
                self.places[key].append(place)

    def next_use(self, key: Key, now: int) -> float:
        """Place of the first use after the event at `now`; infinity: none."""
        places = self.places[key]
        index = bisect.bisect_right(places, now)
        return places[index] if index < len(places) else math.inf


class Belady(Ranked):
    """The nearer next use ranks higher; what is never used again is not admitted. With a horizon: only as far as it."""

    def setup(self, parameters: dict[str, str], events: list[Event], *_: Any) -> None:
        horizon = parameters.pop("horizon", None)
        self.horizon = None if horizon is None else int(horizon)
        self.future = Future(events)

    def admissible(self, key: Key) -> bool:
        return self.horizon is not None or self.future.next_use(key, self.n_seen) < math.inf

    def rank(self, key: Key) -> Any:
        place = self.future.next_use(key, self.n_seen)
        if self.horizon is None:
            return -place
        if place < math.inf and self.future.token[int(place)] - self.clock <= self.horizon:
            return (1, -place)
        return (0, self.last[key])


class BeladyForced(Policy):
    """After an event the content holds all its experts; of the rest the nearest next uses stay."""

    def setup(self, _: dict[str, str], events: list[Event], *__: Any) -> None:
        self.future = Future(events)

    def decide(self, event: Event) -> None:
        def order(key: Key) -> Any:
            return (self.future.next_use(key, self.n_seen), key)

        needed = sorted(event.keys, key=order)[: self.capacity]
        rest = sorted((key for key in self.content if key not in event.keys), key=order)
        self.content = needed + rest[: self.capacity - len(needed)]


class HindsightStatic(Policy):
    """The C experts with the highest count over the whole trace, then the lower (layer, expert)."""

    def setup(self, _: dict[str, str], events: list[Event], n_experts: dict[int, int], *__: Any) -> None:
        counts = Counter(key for event in events for key in event.keys)
        every = [(column, expert) for column in n_experts for expert in range(n_experts[column])]
        self.content = sorted(every, key=lambda key: (-counts[key], key))[: self.capacity]


POLICIES: dict[str, type[Policy]] = {
    "belady": Belady,
    "belady-forced": BeladyForced,
    "hindsight-static": HindsightStatic,
}
