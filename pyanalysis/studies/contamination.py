"""moecache study contamination: requests that begin alike, and what they do to hit rates (arXiv 2608.07911)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ggml_moecache import _native
from pyanalysis.decide.parts import only_events
from pyanalysis.report.plots import lines
from pyanalysis.simulation import EventStream, sweep
from pyanalysis.studies.findings import Findings

if TYPE_CHECKING:
    from pyanalysis.studies.registry import Request
    from pyanalysis.traces import Trace

    Array = np.ndarray[Any, np.dtype[Any]]

POLICIES = ("lru", "cumulative-lfu", _native.default_policy, "hindsight-static", "belady")
ALIKE = 0.9  # share of a token's experts; batches of other shapes round differently and move a few
FEWEST = 8  # tokens; a shorter common beginning is a token or two that every prompt has (a template's is longer)
_PAIRS_AT_ONCE = 20_000


def run(request: Request) -> Findings:
    """Shared beginnings of each trace, and hit rates with one request of each group."""
    findings = Findings("moecache study contamination")
    findings.say(
        "A trace has no text, but the same tokens behind the same beginning are routed alike: two requests share a "
        f"beginning as far as each token in turn has at least {ALIKE:.0%} of its experts, over all layers, in common, "
        "prompt tokens included where they are recorded. Groups are requests that share at least "
        f"{FEWEST} tokens with another of the group. 'across halves': requests of the second half that share as much "
        "with one of the first, so that what was selected on the first half has seen them."
    )
    rows: list[list[Any]] = []
    rates: list[list[Any]] = []
    notes: list[str] = []
    for name, trace in request.traces:
        request.progress(f"contamination: {name}")
        tokens, number = sequences(trace)
        longest, group = beginnings(tokens, trace.ids.shape[1])
        n_tokens = sum(map(len, tokens))
        shared = longest >= FEWEST
        half = len(tokens) // 2
        seen = {int(g) for g, s in zip(group[:half], shared[:half], strict=True) if s}
        across = sum(bool(s) and int(g) in seen for g, s in zip(group[half:], shared[half:], strict=True))
        n_groups = len(np.unique(group[shared]))
        share = float(longest[shared].sum() / max(n_tokens, 1))
        rows.append([name, len(tokens), int(longest.max(initial=0)), int(shared.sum()), n_groups, share, across])
        findings.arrays[f"longest/{name}"] = longest
        if not shared.any():
            why = "one request" if len(tokens) == 1 else f"{len(tokens)} requests, of which no two begin alike"
            notes.append(f"{name} has {why}: none is left out, and both hit rates below are the same")
        first = np.zeros(len(tokens), dtype=bool)
        first[np.unique(group, return_index=True)[1]] = True
        kept = only_events(trace, first[number])
        rates += _rates(name, trace, kept, request)
    findings.heading("Shared beginnings")
    longest_first = {name: np.sort(findings.arrays[f"longest/{name}"])[::-1] for name, _ in request.traces}
    curves = {name: list(enumerate(values.astype(float), 1)) for name, values in longest_first.items()}
    findings.draw(lines(curves, "request, by falling length", "longest shared beginning (tokens)", marker=""))
    header = ["trace", "requests", "longest, tokens", "requests sharing", "groups", "share of tokens", "across halves"]
    findings.table("beginnings", header, rows)
    findings.notes(notes)
    findings.heading("Hit rates with one request of each group")
    findings.say(
        "Decoded tokens, event by event, ideal timing. 'points': with all requests less with one of each group."
    )
    findings.table("hit_rates", ["trace", "capacity %", "policy", "all", "one of each", "points"], rates)
    return findings


def _rates(name: str, trace: Trace, kept: Trace, request: Request) -> list[list[Any]]:
    capacities = [f"{percent:g}%" for percent in request.percents]
    both = []
    for one in (trace, kept):
        stream = EventStream.of(one)
        found = sweep(stream, list(POLICIES), capacities, per_layer=request.per_layer, victim_agreement=False)
        both.append([(result.policy, result.decode_hit_rate or 0.0) for result in found])
    labels = [percent for _ in POLICIES for percent in request.percents]
    return [[name, percent, a[0], a[1], b[1], 100 * (a[1] - b[1])] for percent, a, b in zip(labels, *both, strict=True)]


def sequences(trace: Trace) -> tuple[list[Array], Array]:
    """(the tokens of each request: int16[n, L * k], the number of each event's request: int64[events]).

    Ids are sorted within a layer, -1 where not recorded; requests are in the order of first appearance.
    """
    column, layers = trace.columns
    tokens = trace.tokens
    k = trace.ids.shape[1]
    ids = np.full((len(tokens), len(layers), k), -1, dtype=np.int16)
    ids[tokens.of_event, column] = np.sort(trace.ids, axis=1)
    first = np.full(len(tokens), trace.n_events, dtype=np.int64)
    np.minimum.at(first, tokens.of_event, np.arange(trace.n_events))
    _, inverse = np.unique(tokens.request, return_inverse=True)
    begin = np.full(int(inverse.max()) + 1, trace.n_events, dtype=np.int64)
    np.minimum.at(begin, inverse, first)
    rank = np.empty(len(begin), dtype=np.int64)
    rank[np.argsort(begin, kind="stable")] = np.arange(len(begin))
    number = rank[inverse]
    order = np.lexsort((first, number))
    ends = np.cumsum(np.bincount(number))
    flat = ids.reshape(len(tokens), -1)[order]
    return np.split(flat, ends[:-1]), number[tokens.of_event]


def beginnings(tokens: list[Array], k: int) -> tuple[Array, Array]:
    """(longest beginning that each request shares with another, int64[r]; its group, int64[r]).

    A group has the number of its first request. `tokens` as sequences() gives them, k ids to a layer.
    """
    n = len(tokens)
    longest = np.zeros(n, dtype=np.int64)
    group = np.arange(n)
    lengths = np.array([len(one) for one in tokens], dtype=np.int64)
    one, other = np.triu_indices(n, 1)
    place = 0
    while len(one):
        inside = (lengths[one] > place) & (lengths[other] > place)
        one, other = one[inside], other[inside]
        if len(one) == 0:
            break
        involved, at = np.unique(np.concatenate([one, other]), return_inverse=True)
        now = np.stack([tokens[i][place] for i in involved]).reshape(len(involved), -1, k)
        alike = _alike(now, at[: len(one)], at[len(one) :])
        one, other = one[alike], other[alike]
        place += 1
        longest[one] = place
        longest[other] = place
        if place == FEWEST:
            group = _joined(n, one, other)
    return longest, group


def _alike(now: Array, one: Array, other: Array) -> Array:
    """bool[pairs]: whether the tokens `one` and `other` of `now` [r, L, k] have ALIKE of their experts in common."""
    n_experts = int(now.max(initial=0)) + 1
    hot = np.zeros((*now.shape[:2], n_experts + 1), dtype=np.float32)
    np.put_along_axis(hot, np.where(now < 0, n_experts, now).astype(np.int64), 1, axis=2)
    hot = hot[..., :-1].reshape(len(now), -1)
    asked = np.maximum(hot.sum(axis=1), 1)
    found = np.zeros(len(one), dtype=bool)
    for begin in range(0, len(one), _PAIRS_AT_ONCE):
        part = slice(begin, begin + _PAIRS_AT_ONCE)
        common = np.einsum("pe,pe->p", hot[one[part]], hot[other[part]])
        found[part] = common >= ALIKE * np.maximum(asked[one[part]], asked[other[part]])
    return found


def _joined(n: int, one: Array, other: Array) -> Array:
    """int64[n]: the lowest member of each one's component in the graph of these pairs."""
    root = np.arange(n)
    for a, b in zip(one.tolist(), other.tolist(), strict=True):
        low, high = sorted((_root(root, a), _root(root, b)))
        root[high] = low
    for i in range(n):  # roots are lower than what points to them, so they are final when they are read
        root[i] = root[root[i]]
    return root


def _root(root: Array, member: int) -> int:
    while root[member] != member:
        member = int(root[member])
    return member
