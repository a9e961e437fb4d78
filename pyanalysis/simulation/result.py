"""What a simulation returns: plain data, no pandas."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

Timing = Literal["ideal", "clocked"]
Mode = Literal["event-atomic", "as-run", "per-access"]


@dataclass(frozen=True)
class LayerResult:
    """Counts of one layer (and family): experts asked for and found, over all its events."""

    layer: int
    family: str
    accesses: int
    hits: int

    @property
    def hit_rate(self) -> float:
        return self.hits / self.accesses if self.accesses else 0.0


@dataclass(frozen=True, eq=False)
class EventLog:
    """The decisions of every event, in the order of the replay: what `--events` writes. n events, a accesses.

    Fields are those of the routing log (traces/FORMAT.md). A union event of a prefill batch has the request, token and
    row of its last token and every expert of the batch once.

    row        int64[n]    index of the event's (last) row in the trace
    layer      int32[n]    layer of the model
    family     uint8[n]    index into `families`
    request, token  int64[n]   as in the trace
    phase      uint8[n]    0 prefill, 1 decode
    offsets    int64[n + 1]    experts of event i are ids[offsets[i]:offsets[i + 1]]
    ids        int32[a]    expert ids, in the order of the event
    hit        bool[a]     was visible on the GPU when the event was looked up
    admitted_event   int64[m]   event that admitted (rising); -1: before the first event
    admitted_layer, admitted_family, admitted_expert   int32[m]
    evicted_layer, evicted_family, evicted_expert      int32[m]   who gave up its slot for it; -1: the slot was empty
    copy_enqueued_ns, copy_ready_ns  float64[m]   clock of the simulation; NaN with ideal timing
    copy_ready       int8[m]    1 complete before the same layer's next token, 0 not, -1 there was none or it was
                                evicted before
    """

    families: tuple[str, ...]
    row: Array
    layer: Array
    family: Array
    request: Array
    token: Array
    phase: Array
    offsets: Array
    ids: Array
    hit: Array
    admitted_event: Array
    admitted_layer: Array
    admitted_family: Array
    admitted_expert: Array
    evicted_layer: Array
    evicted_family: Array
    evicted_expert: Array
    copy_enqueued_ns: Array
    copy_ready_ns: Array
    copy_ready: Array


@dataclass(frozen=True)
class SimulationResult:
    """One policy at one capacity over one trace.

    Counts are exact. `None` means that it was not asked for or cannot be known, never that it was zero.
    """

    trace: str  # file of the trace
    policy: str  # canonical: every parameter that is not the default, in the order of the table
    capacity: str  # as it was asked for
    capacity_experts: int  # slots; of each layer with per_layer, of all layers together otherwise
    per_layer: bool
    slots: tuple[int, ...]  # slots of each budget: one per layer with per_layer, else one per size of expert
    timing: Timing
    mode: Mode
    cost: str | None  # name of the cost model
    n_tokens: int
    n_decode_tokens: int
    n_tokens_passed_by: int  # mode "as-run": of ubatches too large for a cache, not replayed and not in n_tokens
    n_events: int
    accesses: int  # experts asked for, each once per event
    hits: int
    step: str  # what decodes at once: "ubatch" where the trace tells all of them, else "token"
    step_experts_over_slots: float | None  # different experts that a step uses over the slots, mean (regime.py)
    steps_above_slots: float | None  # share of the steps that use more experts than there are slots
    decode_accesses: int
    decode_hits: int
    admissions: int  # experts given a slot, those placed before the first event included
    evictions: int
    copies: int
    copy_bytes: int | None  # None: the size of an expert is not known
    copies_late: int  # not complete at the same layer's next token
    cpu_fallbacks: int  # experts that the CPU computed: accesses - hits
    victim_agreement: float | None  # share of evictions whose victim the optimum could have chosen as well
    time_per_token_ns: float | None  # mean over decode tokens; None without a cost model or decode tokens
    miss_time_per_token_ns: float | None  # part of it that would be gone if every expert were a hit
    layers: tuple[LayerResult, ...]
    events: EventLog | None = None

    @property
    def hit_rate(self) -> float:
        """Hits per access, 0 without accesses."""
        return self.hits / self.accesses if self.accesses else 0.0

    @property
    def decode_hit_rate(self) -> float | None:
        """The same over decode events, None if there are none."""
        return self.decode_hits / self.decode_accesses if self.decode_accesses else None

    @property
    def tokens_per_s(self) -> float | None:
        """Decode tokens per second of the estimate."""
        return 1e9 / self.time_per_token_ns if self.time_per_token_ns else None

    def row(self) -> dict[str, Any]:
        """The scalar fields and rates by name, `layers` as a list of objects: one line of `-o jsonl`."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("layers", "events", "slots")}
        values["slots"] = list(self.slots)
        values |= {name: getattr(self, name) for name in ("hit_rate", "decode_hit_rate", "tokens_per_s")}
        values["layers"] = [
            {
                "layer": one.layer,
                "family": one.family,
                "accesses": one.accesses,
                "hits": one.hits,
                "hit_rate": one.hit_rate,
            }
            for one in self.layers
        ]
        return values

    def to_arrow(self) -> pa.Table:
        """One row; RESULT_SCHEMA. Tables of several results can be concatenated."""
        return pa.Table.from_pylist([self.row()], schema=RESULT_SCHEMA)


RESULT_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("trace", "policy", "capacity")),
        ("capacity_experts", pa.int64()),
        ("per_layer", pa.bool_()),
        ("slots", pa.list_(pa.int64())),
        *((name, pa.string()) for name in ("timing", "mode", "cost")),
        *(
            (name, pa.int64())
            for name in ("n_tokens", "n_decode_tokens", "n_tokens_passed_by", "n_events", "accesses", "hits")
        ),
        ("hit_rate", pa.float64()),
        ("step", pa.string()),
        *((name, pa.float64()) for name in ("step_experts_over_slots", "steps_above_slots")),
        *((name, pa.int64()) for name in ("decode_accesses", "decode_hits")),
        ("decode_hit_rate", pa.float64()),
        *((name, pa.int64()) for name in ("admissions", "evictions", "copies", "copy_bytes", "copies_late")),
        ("cpu_fallbacks", pa.int64()),
        *((name, pa.float64()) for name in ("victim_agreement", "time_per_token_ns", "miss_time_per_token_ns")),
        ("tokens_per_s", pa.float64()),
        (
            "layers",
            pa.list_(
                pa.struct(
                    [
                        ("layer", pa.int32()),
                        ("family", pa.string()),
                        ("accesses", pa.int64()),
                        ("hits", pa.int64()),
                        ("hit_rate", pa.float64()),
                    ]
                )
            ),
        ),
    ]
)


def results_to_arrow(results: list[SimulationResult]) -> pa.Table:
    """One row per result; RESULT_SCHEMA."""
    return pa.Table.from_pylist([result.row() for result in results], schema=RESULT_SCHEMA)
