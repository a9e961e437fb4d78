"""The lines of a routing log: their types, the fields of each, and what a field may hold.

`RECORDS` is the one table from which the line validator, the Arrow schema and the writers follow; a test compares it
with traces/routing.schema.json. What the fields mean is in traces/FORMAT.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

FORMAT_NAME = "ggml_moecache routing log"
FORMAT_VERSION = 1

PHASES = ("prefill", "decode")  # index = Trace.phase
# No model has nearly as many experts in a layer. Where run.json does not tell their number this is the bound of ids: a
# larger one is a damaged file, and would cost memory for every expert below it.
MOST_EXPERTS = 65536
# GroveMoE maps the router's choice onto groups, so two of an event's experts may share an adjugate expert.
FAMILIES_WITH_REPEATED_IDS = ("chexps",)

Kind = Literal["text", "phase", "int32", "int64", "flag", "ids", "weights", "flags", "experts"]


@dataclass(frozen=True)
class Field:
    """`nullable`: null is a value of it. `required`: present on every line of its type. `minimum`: of an integer."""

    name: str
    kind: Kind
    nullable: bool = False
    required: bool = True
    minimum: int = 0


_HEAD = (Field("run_id", "text"), Field("context_id", "int64"))

RECORDS: dict[str, tuple[Field, ...]] = {
    "event": (
        *_HEAD,
        Field("batch_id", "int64", minimum=-1),
        Field("request_id", "int64"),
        Field("token_index", "int64"),
        Field("layer_id", "int32"),
        Field("family", "text"),
        Field("phase", "phase"),
        Field("expert_ids", "ids"),
        Field("router_weights", "weights", nullable=True),
        Field("resident_experts", "int64", nullable=True),
        Field("cache_hit", "flags"),
        Field("admitted", "experts"),
        Field("evicted", "experts"),
        Field("copy_enqueued_ns", "int64", nullable=True),
        Field("copy_ready_ns", "int64", nullable=True),
        Field("ready_before_next_token", "flag", nullable=True),
        Field("copy_bytes", "int64"),
        Field("copy_duration_ns", "int64", nullable=True),
        Field("cpu_duration_ns", "int64", nullable=True),
        Field("cuda_duration_ns", "int64", nullable=True),
        Field("top1_token", "int64", required=False, minimum=-1),
    ),
    "overflow": (*_HEAD, Field("batch_id", "int64"), Field("lost_events", "int64", minimum=1)),
    "residency": (
        *_HEAD,
        Field("generation", "int64"),
        Field("full", "experts", required=False),
        Field("added", "experts", required=False),
        Field("removed", "experts", required=False),
    ),
    "end": (*_HEAD, Field("events", "int64"), Field("lost_events", "int64")),
}


@dataclass(frozen=True)
class Event:
    """One routing decision. Units and meaning of every field: traces/FORMAT.md, section "event"."""

    run_id: str
    context_id: int
    batch_id: int
    request_id: int
    token_index: int
    layer_id: int
    family: str
    phase: str
    expert_ids: list[int]
    router_weights: list[float] | None
    resident_experts: int | None = None
    cache_hit: list[bool] = field(default_factory=list)
    admitted: list[list[int]] = field(default_factory=list)
    evicted: list[list[int]] = field(default_factory=list)
    copy_enqueued_ns: int | None = None
    copy_ready_ns: int | None = None
    ready_before_next_token: bool | None = None
    copy_bytes: int = 0
    copy_duration_ns: int | None = None
    cpu_duration_ns: int | None = None
    cuda_duration_ns: int | None = None
    top1_token: int | None = None

    def record(self) -> dict[str, Any]:
        """The event as a line's object; `top1_token` is left out when it is None."""
        values = {"type": "event", **{f.name: getattr(self, f.name) for f in fields(self)}}
        if self.top1_token is None:
            del values["top1_token"]
        return values

    @staticmethod
    def of(record: dict[str, Any]) -> Event:
        """The event of a valid line's object; unknown fields are ignored."""
        names = {f.name for f in RECORDS["event"]}
        return Event(**{name: value for name, value in record.items() if name in names})
