"""The cache of a loaded model: its figures, and its session, which can be kept, restored, begun anew and frozen."""

from __future__ import annotations

import ctypes
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ggml_moecache import _plugin
from ggml_moecache.errors import BackendError, ConfigError

if TYPE_CHECKING:
    from llama_cpp import Llama


@runtime_checkable
class _HasJson(Protocol):
    def to_json(self) -> str: ...


@dataclass(frozen=True)
class CacheSettings:
    """The settings that a context was created with: those that a session belongs to, as the plugin's variables."""

    capacity: str
    policy: str
    per_layer: bool

    @staticmethod
    def in_force() -> CacheSettings:
        """Of the context that is created now."""
        return CacheSettings(
            _plugin.config_get("GGML_MOECACHE_CAPACITY"),
            _plugin.config_get("GGML_MOECACHE_POLICY"),
            _plugin.config_get("GGML_MOECACHE_PER_LAYER") == "1",
        )


class ExpertCache:
    """The cache of a model that `load_model` has returned; `llm.expert_cache` is one.

    (`llm.cache` is llama-cpp-python's cache of prompts.)

    A session is what the cache has learnt: its policy's counters and which experts have slots. There is one at
    capacities between 0 and "all". Calls take effect between two graphs: they wait for the end of the graph that is
    being computed. The cache is made when the model computes for the first time; until then there is nothing to export,
    and what is imported, reset or frozen waits for it.

    Every method may be called from any thread, but not from a callback of the computation. Each raises BackendError if
    `llm` is no model of `load_model`, is closed, or has no cache.

    Examples
    --------
    >>> import ggml_moecache
    >>> llm = ggml_moecache.load_model(capacity="25%", verbose=False)
    >>> text = llm.create_completion("SQLite is a library that", max_tokens=8)["choices"][0]["text"]
    >>> llm.expert_cache.export_state("state.json")["policy"]
    'decayed-lfu'

    """

    def __init__(self, llm: Llama) -> None:
        context_id: int | None = getattr(llm, "_moecache_context_id", None)
        if context_id is None:
            raise BackendError("The 'llm' parameter of ExpertCache must be a model that load_model has returned.")
        self._context_id = context_id
        self._settings: CacheSettings = llm._moecache_settings  # noqa: SLF001 - ours

    def stats(self) -> dict[str, Any]:
        """The model's entry in `status()`, and `hit_rate`: share of the expert rows that the device computed, or None.

        Counts are those of the whole life of the context, whatever was reset or imported. Also of a model that is
        closed, unless 64 others were closed since.
        """
        for context in _plugin.status_json()["contexts"]:
            if context["context_id"] == self._context_id:
                rows = context["n_hits"] + context["n_misses"]
                return {**context, "hit_rate": context["n_hits"] / rows if rows else None}
        raise BackendError(f"The model of context {self._context_id} is closed, and its figures are gone.")

    def reset(self) -> None:
        """Begin anew: counters and residency are those of a model that was just loaded (without a `state_in`)."""
        self._call("reset")

    def freeze(self) -> None:
        """Admit nothing any more and count nothing: the session stands still, hits go on."""
        self._call("freeze", 1)

    def unfreeze(self) -> None:
        """Go on with the session, as if what was computed while it was frozen had not been."""
        self._call("freeze", 0)

    def export_state(self, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """The session as the JSON object of a state file; also written to `path`, which is replaced as a whole.

        Raises ConfigError if `path` cannot be written.
        """
        if path is not None:
            self._call("export_file", os.fsencode(path))
            return _read(path)
        buffer, needed = ctypes.create_string_buffer(1 << 16), ctypes.c_size_t()
        self._call("export", buffer, len(buffer), ctypes.byref(needed))
        while needed.value > len(buffer):  # it may have grown at the next call
            buffer = ctypes.create_string_buffer(needed.value + (1 << 12))
            self._call("export", buffer, len(buffer), ctypes.byref(needed))
        state: dict[str, Any] = json.loads(buffer.value)
        return state

    def import_state(self, state: dict[str, Any] | str | os.PathLike[str] | _HasJson) -> None:
        """Go on where a state was exported: its file, what export_state() returned, or a SessionState of the simulator.

        Raises ConfigError if it is no state, or one of another policy, model or capacity; nothing has changed then.
        Before the first computation only the policy is compared; what does not fit is found when the cache is made, and
        is then a line and the fallback "state_in" in the figures.
        """
        if isinstance(state, (str, os.PathLike)):
            self._call("import_file", os.fsencode(state))
            return
        text = state.to_json() if isinstance(state, _HasJson) else _as_json(state)
        self._call("import", text.encode())

    def warm(self, trace: Any) -> None:  # noqa: ANN401 - a Trace, or the path of one
        """Start from a recorded trace: the simulator replays it at this cache's policy and capacity, that is imported.

        `trace` is a Trace of pyanalysis or the path of one (any that `moecache trace` reads) of the same model. Raises
        ConfigError if the trace is of another model or the capacity is "auto" and nothing was computed yet (then the
        slots are not known), TraceError for a file that is no trace.
        """
        from pyanalysis.simulation.warm import state_after  # noqa: PLC0415 - only here, and it takes long to import

        policy, per_layer = self._settings.policy, self._settings.per_layer
        capacity: str | list[int] = self._settings.capacity
        columns = None
        if self.stats()["policy"]:  # the cache is there: take what it got
            exported = self.export_state()
            policy, per_layer, capacity = exported["policy"], exported["per_layer"], exported["slots"]
            columns = [(one["layer_id"], one["family"], one["n_experts"]) for one in exported["columns"]]
        elif capacity == "auto":
            raise ConfigError("A cache of capacity auto knows its slots once something was computed; call warm() then.")
        self.import_state(state_after(trace, policy, capacity, per_layer=per_layer, of_cache=columns))

    def _call(self, function: str, *arguments: Any) -> None:  # noqa: ANN401 - what ctypes takes
        message: bytes | None = getattr(_plugin.c_api(), f"moecache_session_{function}")(self._context_id, *arguments)
        if message is None:
            return
        text = message.decode(errors="replace")
        if text.startswith(("context ", "there is no context ")):
            raise BackendError(f"The cache of this model cannot be used: {text}.")
        raise ConfigError(text)


def _read(path: str | os.PathLike[str]) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return state


def _as_json(state: object) -> str:
    if not isinstance(state, dict):
        raise ConfigError(
            "The 'state' parameter of import_state must be the path of a state file, what export_state returned, or a "
            f"SessionState. Got {type(state).__name__} instead."
        )
    try:
        return json.dumps(state)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"The 'state' parameter of import_state must be one that JSON has: {error}.") from None
