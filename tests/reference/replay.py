"""Replaying events against a reference policy: what was hit, admitted and evicted at each event.

With ideal timing a copy is complete at the next token, so what a cache holds is what the next event finds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.reference import offline, online
from tests.reference.online import Policy

if TYPE_CHECKING:
    from tests.reference.events import Event, Key


@dataclass(frozen=True)
class Decision:
    """Of one event. `hits` as Event.ids; the order within `admitted` and `evicted` means nothing.

    `agreed`: of m victims those whose next use is among the m farthest of the content before; never again is farthest.
    """

    hits: tuple[bool, ...]
    admitted: frozenset[Key]
    evicted: frozenset[Key]
    agreed: int = field(default=0, compare=False)


def parse(policy: str) -> tuple[str, dict[str, str]]:
    """ "lru:admit-after=2" as ("lru", {"admit-after": "2"})."""
    name, *parameters = policy.split(":")
    return name, dict(parameter.split("=") for parameter in parameters)


def make(policy: str, capacity: int, events: list[Event], n_experts: dict[int, int], order: list[Key]) -> Policy:
    """The reference of one budget. `events`: all of that budget; `order`: of the file of `static`."""
    name, parameters = parse(policy)
    classes = {**online.POLICIES, **offline.POLICIES}
    return classes[name](capacity, parameters, events, n_experts, order)


def replay(
    policy: str,
    events: list[Event],
    slots: list[int],
    n_experts: dict[int, int],
    order: list[Key] | None = None,
) -> tuple[list[Decision], frozenset[Key]]:
    """(the decision of each event, the experts placed before the first).

    slots      of each column, or one number for all columns together
    n_experts  of each column
    """
    shared = len(slots) == 1 and len(n_experts) > 1
    budget_of = {column: 0 if shared else place for place, column in enumerate(sorted(n_experts))}
    policies = []
    for budget, capacity in enumerate(slots):
        own = [event for event in events if budget_of[event.column] == budget]
        experts = {column: n for column, n in n_experts.items() if budget_of[column] == budget}
        mine = [key for key in order or [] if budget_of[key[0]] == budget]
        policies.append(make(policy, capacity, own, experts, mine))
    online.share_generator(policies)
    placed = frozenset(key for one in policies for key in one.content)
    futures = [offline.Future([e for e in events if budget_of[e.column] == budget]) for budget in range(len(slots))]
    decisions = []
    for event in events:
        one = policies[budget_of[event.column]]
        before = set(one.content)
        hits = tuple(key in before for key in event.keys)
        now = one.n_seen
        one.see(event)
        after = set(one.content)
        assert len(after) == len(one.content) <= one.capacity
        next_use = {key: futures[budget_of[event.column]].next_use(key, now) for key in before}
        farthest = sorted(next_use.values(), reverse=True)[: len(before - after)]
        agreed = sum(next_use[key] >= farthest[-1] for key in before - after)
        decisions.append(Decision(hits, frozenset(after - before), frozenset(before - after), agreed))
    return decisions, placed


def hit_rate(decisions: list[Decision]) -> float:
    hits = [hit for decision in decisions for hit in decision.hits]
    return sum(hits) / len(hits)
