"""The routing log from inside the process: the live ring as numpy arrays, request ids, run metadata."""

from __future__ import annotations

import ctypes
import json
import weakref
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
_LARGEST_ID = 2**63 - 1  # the log's integers have a sign


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


class _Handle:
    """A consumer's handle of the C API. The ring's memory is there as long as this object: arrays hold it."""

    def __init__(self, context_id: int) -> None:
        api = _plugin.c_api()
        pointer = ctypes.c_void_p()
        message = api.moecache_ring_open(context_id, ctypes.byref(pointer))
        if message is not None:
            raise BackendError(f"The 'llm' parameter of RoutingRing cannot be used: {message.decode()}.")
        self.pointer = pointer
        weakref.finalize(self, api.moecache_ring_close, pointer).atexit = False  # arrays may be read at exit


class RoutingRing:
    """Consumer side of the routing events of a model loaded with `live_log=True`.

    One consumer per model. It may be made before or after the model's first graph, and be read on after the model was
    closed. All events of a ubatch enter the ring at once, so a ring that is smaller than those of one ubatch loses
    some whatever the consumer does. Use it from one thread at a time.

    Raises BackendError if the model is closed, was not loaded with `live_log=True`, or has a consumer already.

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
        context_id: int | None = getattr(llm, "_moecache_context_id", None)
        if context_id is None:
            raise BackendError("The 'llm' parameter of RoutingRing must be a model that load_model has returned.")
        self._api = _plugin.c_api()
        self._handle: _Handle | None = _Handle(context_id)
        self._n_released = 0

    def _open_handle(self) -> _Handle:
        if self._handle is None:
            raise BackendError("This RoutingRing is closed.")
        return self._handle

    def _info(self, handle: _Handle) -> _Info:
        info = _Info()
        self._api.moecache_ring_get_info(handle.pointer, ctypes.byref(info))
        return info

    def view(self) -> npt.NDArray[np.void]:
        """The events that can be read where they lie, read-only and without copying: shape (n,), see `event_dtype`.

        The array keeps the memory, whatever is closed or freed before it. Its contents are those events until `release`
        or `close`; after that newer ones may be written over them. The memory of the ring begins anew at its end, so
        more events may be there behind a second call after `release`. Raises BackendError if the ring is closed.
        """
        handle = self._open_handle()
        address = ctypes.c_void_p()
        n_events = self._api.moecache_ring_peek(handle.pointer, ctypes.byref(address))
        info = self._info(handle)
        dtype = event_dtype(info.stride_bytes or 48, info.k_max)  # 48 bytes: the fields alone, before there is a ring
        if n_events == 0 or address.value is None:
            return np.empty(0, dtype)
        memory = (ctypes.c_char * (n_events * dtype.itemsize)).from_address(address.value)
        memory.owner = handle  # read by nobody: it keeps the ring alive
        return np.frombuffer(memoryview(memory).toreadonly(), dtype)

    def release(self, n_events: int) -> None:
        """Give the first `n_events` of the last `view` back to the ring.

        Raises ConfigError if that is no whole number or there are fewer, BackendError if the ring is closed.
        """
        available = len(self.view())
        if (
            not isinstance(n_events, SupportsIndex)
            or isinstance(n_events, bool)
            or not 0 <= index(n_events) <= available
        ):
            raise ConfigError(
                f"The 'n_events' parameter of release must be a whole number between 0 and {available}. "
                f"Got {n_events!r} instead."
            )
        self._release(index(n_events))

    def _release(self, n_events: int) -> None:
        self._api.moecache_ring_release(self._open_handle().pointer, n_events)
        self._n_released += n_events

    def events(self) -> Iterator[RoutingEvent]:
        """Take the events that are in the ring, and those that come meanwhile, one by one.

        An event is taken when it is handed over: stopping early leaves the others in the ring, and none comes twice.
        Raises BackendError if the ring is closed.
        """
        while len(events := self.view()):
            first = self._n_released
            for place, event in enumerate(events):
                if self._n_released != first + place or self._handle is None:
                    break  # another iterator, `release` or `close` came between
                taken = _as_event(event)
                self._release(1)
                yield taken

    def stats(self) -> dict[str, int]:
        """n_slots, n_committed (events put into the ring so far) and n_lost (because it was full).

        All are 0 before the model's first graph. Raises BackendError if the ring is closed.
        """
        info = self._info(self._open_handle())
        return {"n_slots": info.n_slots, "n_committed": info.n_committed, "n_lost": info.n_lost}

    def close(self) -> None:
        """Let go of the ring: another may be made for the model. Arrays of `view` can still be read."""
        if self._handle is not None:
            self._api.moecache_ring_detach(self._handle.pointer)
            self._handle = None

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()

    def __enter__(self) -> RoutingRing:  # noqa: PYI034 - typing.Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _as_event(event: np.void) -> RoutingEvent:
    n_used = int(event["n_used"])
    weights = tuple(float(weight) for weight in event["weights"][:n_used])
    return RoutingEvent(
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


def set_request_id(llm: Llama, request_id: int | None) -> None:
    """Name the request of the tokens that follow in the routing log; None: told by their positions again.

    An id is a whole number of 63 bits. Requests that are told by positions get ids above all before, of which those
    that were set by hand count below 2**62 only. Raises ConfigError for any other id, BackendError if `llm` is no model
    of `load_model` or is closed.
    """
    context_id = getattr(llm, "_moecache_context_id", None)
    if context_id is None:
        raise BackendError("The 'llm' parameter of set_request_id must be a model that load_model has returned.")
    value = _AUTOMATIC if request_id is None else _as_request_id(request_id)
    message = _plugin.c_api().moecache_set_request_id(context_id, value)
    if message is not None:
        raise BackendError(f"The 'llm' parameter of set_request_id cannot be used: {message.decode()}.")


def _as_request_id(value: object) -> int:
    if isinstance(value, SupportsIndex) and not isinstance(value, bool) and 0 <= index(value) <= _LARGEST_ID:
        return index(value)
    raise ConfigError(
        f"The 'request_id' parameter of set_request_id must be None or a whole number from 0 to {_LARGEST_ID}. "
        f"Got {value!r} instead."
    )


def run_metadata() -> dict[str, Any]:
    """What run.json of this process's newest log holds now, or would hold where it is live (traces/run.schema.json)."""
    state: dict[str, Any] = _plugin.read_json("moecache_run_json")
    return state


def set_run_field(name: str, value: object) -> None:
    """Set a field of run.json that the plugin cannot know, such as "seed" or "model.file", to a value JSON can hold.

    Raises ConfigError for a field that cannot be set and for a value that JSON does not have.
    """
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"The 'value' parameter of set_run_field must be one that JSON has: {error}.") from None
    message = _plugin.c_api().moecache_run_set(str(name).encode(), text.encode())
    if message is not None:
        raise ConfigError(message.decode())
