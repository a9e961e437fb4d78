"""The routing log from inside the process: the live ring as numpy arrays, request ids, run metadata."""

from __future__ import annotations

import ctypes
import json
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from ggml_moecache import _plugin
from ggml_moecache.errors import BackendError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_cpp import Llama

FAMILIES = ("exps", "chexps")
PHASES = ("prefill", "decode")
_AUTOMATIC = 2**64 - 1


@dataclass(frozen=True)
class RoutingEvent:
    """One routing decision: a layer's ordered top-k for one token (traces/FORMAT.md has the units)."""

    batch_id: int
    request_id: int
    token_index: int
    layer_id: int
    family: str
    phase: str
    expert_ids: tuple[int, ...]
    router_weights: tuple[float, ...] | None
    lost_before: int


class _Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("stride_bytes", "k_max", "n_slots", "n_committed", "n_lost")]


def event_dtype(stride_bytes: int, k_max: int) -> np.dtype[np.void]:
    """Structured dtype of one slot: the fields of `moecache_event`, then ids int32 and weights float32, (k_max,) each.

    Only the first `n_used` ids and weights of an event are valid.
    """
    fields: list[tuple[str, Any, int]] = [
        ("batch_id", np.uint64, 0),
        ("request_id", np.uint64, 8),
        ("token_index", np.int32, 16),
        ("layer_id", np.int32, 20),
        ("family", np.uint8, 24),
        ("phase", np.uint8, 25),
        ("n_used", np.uint16, 26),
        ("has_weights", np.uint8, 28),
        ("lost_before", np.uint32, 32),
        ("lost_batch_id", np.uint64, 40),
        ("ids", (np.int32, (k_max,)), 48),
        ("weights", (np.float32, (k_max,)), 48 + 4 * k_max),
    ]
    names, formats, offsets = zip(*fields, strict=True)
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": stride_bytes})


class RoutingRing:
    """Consumer side of the routing events of a model loaded with `live_log=True`.

    One consumer per model. The ring is made at the model's first graph with an MoE block; once it has been read it may
    be read on after the model was closed. Use it from one thread at a time.

    Examples
    --------
    >>> import ggml_moecache
    >>> llm = ggml_moecache.load_model(live_log=True, verbose=False)
    >>> ring = ggml_moecache.RoutingRing(llm)
    >>> llm.eval([5, 6, 7])
    >>> len(list(ring.events()))  # 3 tokens in 8 layers
    24

    """

    def __init__(self, llm: Llama) -> None:
        self._context_id: int | None = getattr(llm, "_moecache_context_id", None)
        if self._context_id is None:
            raise BackendError("The 'llm' parameter of RoutingRing must be a model that load_model has returned.")
        self._api = _plugin.c_api()
        self._handle: int | None = None
        self._dtype: np.dtype[np.void] | None = None
        self._open()

    def _open(self) -> bool:
        if self._handle is None:
            self._handle = self._api.moecache_ring_open(self._context_id)
            if self._handle is not None:
                info = self._info()
                self._dtype = event_dtype(info.stride_bytes, info.k_max)
        return self._handle is not None

    def _info(self) -> _Info:
        info = _Info()
        self._api.moecache_ring_get_info(self._handle, ctypes.byref(info))
        return info

    def view(self) -> npt.NDArray[np.void]:
        """The events that can be read where they lie, read-only and without copying: shape (n,), see `event_dtype`.

        The array is valid until `release` or `close`. The memory of the ring begins anew at its end, so more events may
        be there behind a second call after `release`.
        """
        if not self._open() or self._dtype is None:
            return np.empty(0, np.dtype([("batch_id", np.uint64)]))
        address = ctypes.c_void_p()
        n_events = self._api.moecache_ring_peek(self._handle, ctypes.byref(address))
        if n_events == 0 or address.value is None:
            return np.empty(0, self._dtype)
        memory = (ctypes.c_char * (n_events * self._dtype.itemsize)).from_address(address.value)
        events = np.frombuffer(memory, self._dtype)
        events.flags.writeable = False
        return events

    def release(self, n_events: int) -> None:
        """Give the first `n_events` of the last `view` back to the ring. Raises ConfigError if there are fewer."""
        available = len(self.view())
        if not 0 <= n_events <= available:
            raise ConfigError(
                f"The 'n_events' parameter of release must be between 0 and {available}. Got {n_events} instead."
            )
        if n_events:
            self._api.moecache_ring_release(self._handle, n_events)

    def events(self) -> Iterator[RoutingEvent]:
        """Take all events that are in the ring now, one by one."""
        while len(events := self.view()):
            for event in events:
                n_used = int(event["n_used"])
                weights = tuple(float(weight) for weight in event["weights"][:n_used])
                yield RoutingEvent(
                    batch_id=int(event["batch_id"]),
                    request_id=int(event["request_id"]),
                    token_index=int(event["token_index"]),
                    layer_id=int(event["layer_id"]),
                    family=FAMILIES[event["family"]],
                    phase=PHASES[event["phase"]],
                    expert_ids=tuple(int(expert) for expert in event["ids"][:n_used]),
                    router_weights=weights if event["has_weights"] else None,
                    lost_before=int(event["lost_before"]),
                )
            self.release(len(events))

    def stats(self) -> dict[str, int]:
        """n_slots, n_committed (events put into the ring so far) and n_lost (because it was full)."""
        if not self._open():
            return {"n_slots": 0, "n_committed": 0, "n_lost": 0}
        info = self._info()
        return {"n_slots": info.n_slots, "n_committed": info.n_committed, "n_lost": info.n_lost}

    def close(self) -> None:
        """Let go of the ring. Arrays of `view` must not be used afterwards."""
        if self._handle is not None:
            self._api.moecache_ring_close(self._handle)
            self._handle = None

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()

    def __enter__(self) -> RoutingRing:  # noqa: PYI034 - typing.Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def set_request_id(llm: Llama, request_id: int | None) -> None:
    """Name the request of the tokens that follow in the routing log; None: told by their positions again.

    Raises ConfigError for an id that is no whole number of 64 bits, BackendError if `llm` is no model of `load_model`.
    """
    context_id = getattr(llm, "_moecache_context_id", None)
    if context_id is None:
        raise BackendError("The 'llm' parameter of set_request_id must be a model that load_model has returned.")
    value = _AUTOMATIC if request_id is None else _as_request_id(request_id)
    message = _plugin.c_api().moecache_set_request_id(context_id, value)
    if message is not None:
        raise BackendError(message.decode())


def _as_request_id(value: object) -> int:
    if isinstance(value, SupportsIndex) and not isinstance(value, bool) and 0 <= index(value) < _AUTOMATIC:
        return index(value)
    raise ConfigError(
        f"The 'request_id' parameter of set_request_id must be None or a whole number from 0 to {_AUTOMATIC - 1}. "
        f"Got {value!r} instead."
    )


def run_metadata() -> dict[str, Any]:
    """What run.json of this process's routing logs holds now (traces/run.schema.json)."""
    state: dict[str, Any] = _plugin.read_json("moecache_run_json")
    return state


def set_run_field(name: str, value: object) -> None:
    """Set a field of run.json that the plugin cannot know, such as "seed" or "model.file", to a value JSON can hold.

    Raises ConfigError for a field that cannot be set.
    """
    message = _plugin.c_api().moecache_run_set(name.encode(), json.dumps(value).encode())
    if message is not None:
        raise ConfigError(message.decode())
