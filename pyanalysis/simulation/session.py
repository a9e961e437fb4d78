"""A replay that can be stopped, exported, imported and gone on with: the decisions are those of one never interrupted.

    first = Session("log", "lru", "25%", per_layer=True)
    first.run(until_event=1000)
    second = Session("log", "lru", "25%", per_layer=True)
    second.import_state(first.export_state())
    second.run()

What a state holds: the policy with its counters, the content of every budget, the next event. What it does not hold:
the clock and the copies in flight. After an import every expert of the content is resident, a copy that was in flight
at the export included, and the clock begins at 0. Decisions do not depend on the clock (policies/README.md, "Content"),
so they are the same; with clocked timing hits and late copies of the first events after an import may differ.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ggml_moecache import _native
from ggml_moecache.errors import ConfigError
from pyanalysis.output_path import file_to_write
from pyanalysis.simulation.arguments import canonical, cost_of, stream_of, whole
from pyanalysis.simulation.capacity import slots_of
from pyanalysis.simulation.run import Replay
from pyanalysis.traces.staging import Staged

if TYPE_CHECKING:
    from pyanalysis.simulation.arguments import CostLike, TraceLike
    from pyanalysis.simulation.result import Mode, Timing
    from pyanalysis.simulation.run import Capacity

    Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class SessionState:
    """What export_state() gives. Plain data: it can be pickled, and written as the JSON that a runtime cache reads.

    policy   canonical name
    per_layer, slots, columns   of the cache: a state is imported by a cache that has the same
    arrays   int64[...] by name: what the policy has learnt, `content`, `next_event`, `next_access`, `next_token`,
             `next_request`
    model    fingerprint of the experts as run.json has it, "": not known; two that are known must be the same
    """

    policy: str
    per_layer: bool
    slots: tuple[int, ...]
    columns: tuple[tuple[int, str, int, int], ...]
    arrays: dict[str, Array]
    model: str = ""

    def to_json(self) -> str:
        """The JSON of a state file (ggml_moecache/core/state-file.h)."""
        arrays = {name: np.ascontiguousarray(array, dtype=np.int64) for name, array in self.arrays.items()}
        return _native.format_state(
            self.policy, self.per_layer, list(self.slots), list(self.columns), arrays, self.model
        )

    def write(self, path: str | os.PathLike[str], *, force: bool = True) -> None:
        """Write a state file, for GGML_MOECACHE_STATE_IN, as a whole. Raises TraceError if it cannot be written.

        A path that ends in a slash is the name of a folder: MoeCacheError.
        """
        file = Staged(file_to_write(os.fspath(path)), force=force)
        try:
            file.write((self.to_json() + "\n").encode())
            file.commit()
        except BaseException:
            file.discard()
            raise

    @staticmethod
    def read(path: str | os.PathLike[str]) -> SessionState:
        """Read a state file, of the simulator or of a runtime cache. Raises ConfigError if it holds no state."""
        try:
            return SessionState(**_native.read_state(os.fspath(path)))
        except ValueError as error:
            raise ConfigError(str(error)) from None


@dataclass(frozen=True)
class SessionCounts:
    """What a session itself has replayed, since it was made or its state was imported; fields as SimulationResult's."""

    accesses: int
    hits: int
    admissions: int
    evictions: int
    copies_late: int


class Session:
    """One policy at one capacity over one trace, step by step. Arguments and errors are those of simulate().

    Not for use by several threads at once.
    """

    def __init__(
        self,
        trace: TraceLike,
        policy: str,
        capacity: Capacity,
        cost: CostLike | None = None,
        *,
        per_layer: bool = False,
        timing: Timing | None = None,
        mode: Mode = "event-atomic",
        batch_size: int = 512,
        seed: int = 0,
    ) -> None:
        cost = cost_of(cost)
        self._stream = stream_of(trace, cost, mode, batch_size)
        self.policy = canonical(self._stream, policy, seed)
        self._asked = policy
        self._seed = seed
        self._per_layer = per_layer
        self._slots = slots_of(self._stream, capacity, per_layer=per_layer)
        self._options = Replay(cost, per_layer, timing, seed, victim_agreement=False).options(self._stream)
        self._native = self._made()
        self.next_event = 0  # the first event that is not yet replayed

    @property
    def n_events(self) -> int:
        """Events of the trace."""
        return self._stream.native.n_events

    def run(self, until_event: int | None = None) -> None:
        """Replay up to this event, which is not replayed; default: all. Raises ConfigError outside of what is left."""
        until = self.n_events if until_event is None else whole("until_event", until_event, 0)
        if not self.next_event <= until <= self.n_events:
            raise ConfigError(
                f"until_event must be from {self.next_event}, the next event, to {self.n_events}, the events of "
                f"{self._stream.trace}. Got {until} instead."
            )
        self._native.run(until)
        self.next_event = until

    def counts(self) -> SessionCounts:
        """Counts so far; they begin at 0 with an import, whose content was admitted by the session before."""
        counts = self._native.counts()
        names = SessionCounts.__dataclass_fields__
        return SessionCounts(**{name: getattr(counts, name) for name in names})

    def content(self) -> list[tuple[int, str, int]]:
        """(layer, family, expert) of every slot that is not empty, their copies complete or not, in rising order."""
        first = self._stream.first_item
        found = []
        for _, item, _ in self._native.slots():
            column = int(np.searchsorted(first, item, side="right")) - 1
            layer, family, *_ = self._stream.columns[column]
            found.append((layer, family, item - int(first[column])))
        return sorted(found)

    def export_state(self) -> SessionState:
        """The state after the last event that was replayed. The session can go on."""
        if self.next_event == 0:
            raise ConfigError("there is no state to export before the first event has been replayed")
        saved = self._native.save()
        return SessionState(
            self.policy, self._per_layer, self._slots, self._stream.columns, saved["arrays"], self._stream.model
        )

    def import_state(self, state: SessionState, *, from_start: bool = False) -> None:
        """Go on from a state: of the same policy and geometry, not necessarily of this trace's events before it.

        from_start   replay this trace from its first event, as if it followed what the state has seen; else from the
                     state's next event on. A trace that begins in the middle of a request goes on with the state's
                     last request.

        Raises ConfigError for a state of another policy or cache, a damaged one, one whose next event this trace does
        not have, or if this session has replayed events. The session is then as it was.
        """
        if self.next_event != 0:
            raise ConfigError("a state is imported before the first event is replayed; make a new Session for it")
        own = {"policy": self.policy, "per_layer": self._per_layer, "slots": self._slots}
        for name, value in {**own, "columns": self._stream.columns}.items():
            if getattr(state, name) != value:
                raise ConfigError(f"the state's {name} is {getattr(state, name)}, this session's is {value}")
        if state.model and self._stream.model and state.model != self._stream.model:
            raise ConfigError(
                f"the state is of another model with the same layers and experts: its fingerprint is {state.model}, "
                f"that of {self._stream.trace} is {self._stream.model} (each quantization has its own)"
            )
        arrays = {name: np.ascontiguousarray(array, dtype=np.int64) for name, array in state.arrays.items()}
        continues = bool(self._stream.token[0] > 0)
        try:
            self._native.load({"policy": state.policy, "arrays": arrays}, from_start, continues)
        except ValueError as error:
            self._native = self._made()  # a part of the state may be in it
            raise ConfigError(str(error)) from None
        self.next_event = 0 if from_start else int(arrays["next_event"][0])

    def _made(self) -> _native.Simulator:
        try:
            return _native.Simulator.make(
                self._stream.native, self._per_layer, self._asked, self._seed, list(self._slots), self._options
            )
        except ValueError as error:
            raise ConfigError(str(error)) from None
