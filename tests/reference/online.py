"""References of the policies that know only the past. Definitions: ggml_moecache/core/policies/README.md, the issue's
list, DESIGN section 4. A higher rank is better; `Key` is (column, expert)."""

from __future__ import annotations

import functools
from decimal import Decimal, getcontext
from fractions import Fraction
from typing import Any

from tests.reference.events import Event, Key

getcontext().prec = 60  # decayed-lfu: sums of 2^(t / H) that are not equal differ long before


class Policy:
    """One budget. `content` is what it holds; `see` takes the next event of the budget and changes it."""

    def __init__(
        self,
        capacity: int,
        parameters: dict[str, str],
        events: list[Event],
        n_experts: dict[int, int],
        order: list[Key],
    ) -> None:
        self.capacity = capacity
        self.content: list[Key] = []
        self.uses: dict[Key, list[tuple[int, int]]] = {}  # (token, place of the event) of each use
        self.last: dict[Key, tuple[int, int]] = {}  # (place of the event, position in it)
        self.n_seen = 0
        self.clock = 0
        self.admit_after = int(parameters.pop("admit-after", 1))
        self.payback = Fraction(parameters.pop("payback", 0))
        self.payback_horizon = Fraction(parameters.pop("payback-horizon", 1024))
        self.setup(parameters, events, n_experts, order)
        assert not parameters

    def setup(
        self, parameters: dict[str, str], events: list[Event], n_experts: dict[int, int], order: list[Key]
    ) -> None:
        """Read the parameters, each taken out of the dictionary; place what is placed before the first event."""

    def see(self, event: Event) -> None:
        self.clock = event.token
        for position, key in enumerate(event.keys):
            self.uses.setdefault(key, []).append((self.clock, self.n_seen))
            self.last[key] = (self.n_seen, position)
        self.count(event)
        self.decide(event)
        self.n_seen += 1

    def count(self, event: Event) -> None: ...

    def decide(self, event: Event) -> None: ...

    def may_enter(self, newcomer: Key, victim: Key | None) -> bool:
        """admit-after and payback; victim None: an empty slot."""
        n_new = len(self.uses.get(newcomer, ()))
        if n_new < self.admit_after:
            return False
        if not self.payback:
            return True
        n_victim = 0 if victim is None else len(self.uses.get(victim, ()))
        return self.payback_horizon * (n_new - n_victim) >= self.payback * (self.clock + 1)


class Ranked(Policy):
    """After an event the content is the C best of the content before it and the event's experts together."""

    def rank(self, key: Key) -> Any:
        """What decides; equal ranks leave a resident in place."""
        raise NotImplementedError

    def admissible(self, key: Key) -> bool:
        del key
        return True

    def order(self, key: Key, *, resident: bool) -> Any:
        """A total order: of two equals a resident ranks higher, then the lower (layer, expert)."""
        column, expert = key
        return (self.rank(key), resident, -column, -expert)

    def decide(self, event: Event) -> None:
        newcomers = [key for key in event.keys if key not in self.content and self.admissible(key)]
        if not self.payback:
            newcomers = [key for key in newcomers if self.may_enter(key, None)]
            candidates = [(self.order(key, resident=True), key) for key in self.content]
            candidates += [(self.order(key, resident=False), key) for key in newcomers]
            self.content = [key for _, key in sorted(candidates, reverse=True)[: self.capacity]]
            return
        for key in sorted(newcomers, key=lambda key: self.order(key, resident=False), reverse=True):
            if len(self.content) < self.capacity:
                if self.may_enter(key, None):
                    self.content.append(key)
            elif self.capacity:
                worst = min(self.content, key=lambda one: self.order(one, resident=True))
                if self.rank(key) > self.rank(worst) and self.may_enter(key, worst):
                    self.content[self.content.index(worst)] = key


class Lru(Ranked):
    def rank(self, key: Key) -> Any:
        return self.last[key]


class CumulativeLfu(Ranked):
    def setup(self, parameters: dict[str, str], *_: Any) -> None:
        self.by_recency = {"strict": False, "recency": True}[parameters.pop("tie", "strict")]

    def rank(self, key: Key) -> Any:
        return (self.score(key), self.last[key] if self.by_recency else 0)

    def score(self, key: Key) -> int:
        return len(self.uses[key])


@functools.cache
def power_of_two(token: int, half_life: Decimal) -> Decimal:
    return Decimal(2) ** (Decimal(token) / half_life)


class DecayedLfu(Ranked):
    def setup(self, parameters: dict[str, str], *_: Any) -> None:
        self.half_life = Decimal(parameters.pop("half-life"))

    def rank(self, key: Key) -> Any:
        return sum(power_of_two(token, self.half_life) for token, _ in self.uses[key])


class WindowedLfu(CumulativeLfu):
    def setup(self, parameters: dict[str, str], *rest: Any) -> None:
        self.window = int(parameters.pop("window"))
        super().setup(parameters, *rest)

    def score(self, key: Key) -> int:
        return sum(token > self.clock - self.window for token, _ in self.uses[key])


class Lfru(Ranked):
    def setup(self, parameters: dict[str, str], *_: Any) -> None:
        self.weight = int(parameters.pop("weight"))

    def rank(self, key: Key) -> Any:
        uses_per_token = Fraction(len(self.uses[key]), self.clock + 1)
        return (self.weight * uses_per_token + self.uses[key][-1][0], self.last[key])


class RequestLfu(CumulativeLfu):
    def setup(self, parameters: dict[str, str], *rest: Any) -> None:
        self.request = -1
        self.counts: dict[Key, int] = {}
        super().setup(parameters, *rest)

    def count(self, event: Event) -> None:
        if event.request > self.request:
            self.request = event.request
            self.counts = {}
        for key in event.keys:
            self.counts[key] = self.counts.get(key, 0) + 1

    def score(self, key: Key) -> int:
        return self.counts.get(key, 0)


class IntervalRefresh(Policy):
    """An empty slot takes the next miss; every N tokens the C most used since the last election are elected."""

    def setup(self, parameters: dict[str, str], *_: Any) -> None:
        self.every = int(parameters.pop("every"))
        self.elected = 0
        self.counts: dict[Key, int] = {}

    def decide(self, event: Event) -> None:
        for key in event.keys:
            self.counts[key] = self.counts.get(key, 0) + 1
        if self.clock // self.every > self.elected:
            self.elected = self.clock // self.every
            self.elect()
            self.counts = {}
            return
        for key in event.keys:
            if key not in self.content and len(self.content) < self.capacity and self.may_enter(key, None):
                self.content.append(key)

    def elect(self) -> None:
        def order(key: Key) -> Any:
            return (self.counts.get(key, 0), key in residents, -key[0], -key[1])

        residents = set(self.content)
        newcomers = sorted((key for key in self.counts if key not in residents), key=order, reverse=True)
        for key in newcomers:
            if len(self.content) < self.capacity:
                if self.may_enter(key, None):
                    self.content.append(key)
            elif self.capacity:
                worst = min(self.content, key=order)
                if self.counts[key] > self.counts.get(worst, 0) and self.may_enter(key, worst):
                    self.content[self.content.index(worst)] = key


class ColdStatic(Policy):
    """order=use: the first C that are used; order=id: the first C of all, placed before the first event."""

    def setup(self, parameters: dict[str, str], _: list[Event], n_experts: dict[int, int], *__: Any) -> None:
        self.by_use = {"use": True, "id": False}[parameters.pop("order", "use")]
        if not self.by_use:
            every = [(column, expert) for column in sorted(n_experts) for expert in range(n_experts[column])]
            self.content = every[: self.capacity]

    def decide(self, event: Event) -> None:
        if self.by_use:
            for key in event.keys:
                if key not in self.content and len(self.content) < self.capacity:
                    self.content.append(key)


class Static(Policy):
    """The first C experts of the budget in the order of the file."""

    def setup(self, parameters: dict[str, str], _: list[Event], __: dict[int, int], order: list[Key]) -> None:
        parameters.pop("file")
        self.content = order[: self.capacity]


class SplitMix64:
    """Steele, Lea, Flood: Fast splittable pseudorandom number generators (2014)."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def next(self) -> int:
        mask = 2**64 - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)


class Random(Policy):
    """Every miss is admitted, as many as there are slots; a slot is drawn, again while this event gave it away."""

    def setup(self, parameters: dict[str, str], *_: Any) -> None:
        self.generator = SplitMix64(int(parameters.pop("seed", "0")))

    def decide(self, event: Event) -> None:
        given: set[int] = set()
        misses = [key for key in event.keys if key not in self.content]
        for key in misses:
            if len(given) == self.capacity:
                break
            if len(self.content) < self.capacity:
                if self.may_enter(key, None):
                    given.add(len(self.content))
                    self.content.append(key)
                continue
            slot = self.generator.next() % self.capacity
            while slot in given:
                slot = self.generator.next() % self.capacity
            if self.may_enter(key, self.content[slot]):
                given.add(slot)
                self.content[slot] = key


def share_generator(policies: list[Policy]) -> None:
    """One generator serves all budgets."""
    drawn = [one for one in policies if isinstance(one, Random)]
    for one in drawn[1:]:
        one.generator = drawn[0].generator


POLICIES: dict[str, type[Policy]] = {
    "lru": Lru,
    "cumulative-lfu": CumulativeLfu,
    "decayed-lfu": DecayedLfu,
    "windowed-lfu": WindowedLfu,
    "lfru": Lfru,
    "request-lfu": RequestLfu,
    "interval-refresh": IntervalRefresh,
    "cold-static": ColdStatic,
    "static": Static,
    "random": Random,
}
