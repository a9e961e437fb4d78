"""load_model: a llama_cpp.Llama whose weights and graph run on the MoECache device."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ggml_moecache import _native, _plugin
from ggml_moecache._paths import embedded_model, llama_library_dir
from ggml_moecache.errors import BackendError, ConfigError, MissingDependencyError
from ggml_moecache.expert_cache import CacheSettings, ExpertCache
from ggml_moecache.gguf_file import read_model
from ggml_moecache.log_settings import check_live_log, check_top1, log_variables, set_variable
from ggml_moecache.logit_lens import LogitLens
from ggml_moecache.run_fields import check_new_log, describe_run
from ggml_moecache.top1 import Top1Recorder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_cpp import Llama

# llama_model_default_params is replaced while one Llama is constructed; two at a time would each take the other's
# replacement for the original.
_construction_lock = threading.Lock()
MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ of llama.cpp


def import_llama_cpp() -> Any:  # noqa: ANN401 - a module that need not be installed
    try:
        return importlib.import_module("llama_cpp")
    except ModuleNotFoundError as error:
        if error.name != "llama_cpp":
            raise
        raise MissingDependencyError("llama-cpp-python is not installed: pip install 'ggml-moecache[llama]'") from error
    except (OSError, RuntimeError, FileNotFoundError) as error:
        raise MissingDependencyError(
            f"llama-cpp-python is installed but finds no llama.cpp libraries ({error}). Run scripts/setup, or set "
            "MOECACHE_LLAMA_DIR to a build of llama.cpp."
        ) from error


def load_backends() -> tuple[Any, _plugin.Registry]:
    """llama_cpp, and GGML's registry with llama.cpp's own backends loaded. Raises as load_model does."""
    module = import_llama_cpp()
    registry = _plugin.Registry()
    registry.load_stock_backends(llama_library_dir() or Path(str(module.__file__)).parent / "lib")
    return module, registry


def check_capacity(capacity: int | str | None) -> str | None:
    """The plugin's spelling of `capacity`, None as it is. Raises ConfigError for what is no capacity."""
    if capacity is None:
        return None
    if not isinstance(capacity, bool) and isinstance(capacity, (int, str)) and _native.is_capacity(str(capacity)):
        return str(capacity)
    raise ConfigError(
        f"The 'capacity' parameter of load_model must be {_native.capacity_rule}. Got {capacity!r} instead."
    )


def _state_variables(state_in: object, state_out: object) -> dict[str, str]:
    """Variables of the plugin for the files of the session. Raises ConfigError for what is no state.

    The plugin opens them later, from whatever folder is the current one then.
    """
    values = {}
    for name, given in (("state_in", state_in), ("state_out", state_out)):
        if given is None:
            continue
        if not isinstance(given, (str, os.PathLike)) or os.fspath(given) == "":
            raise ConfigError(f"The {name!r} parameter of load_model must name a file. Got {given!r} instead.")
        if os.fspath(given).endswith("/"):
            raise ConfigError(
                f"The {name!r} parameter of load_model must name a file, no folder. Got {given!r} instead."
            )
        values[f"GGML_MOECACHE_{name.upper()}"] = str(Path(given).absolute())
    if state_in is not None:
        try:
            _native.read_state(values["GGML_MOECACHE_STATE_IN"])
        except ValueError as error:
            raise ConfigError(f"The 'state_in' parameter of load_model cannot be used: {error}.") from None
    return values


def _cache_variables(capacity: int | str | None, policy: str | None, per_layer: bool | None) -> dict[str, str]:
    """Variables of the plugin for the cache. Raises ConfigError; the plugin itself checks the policy."""
    for name, given, kind in (("policy", policy, str), ("per_layer", per_layer, bool)):
        if given is not None and not isinstance(given, kind):
            what = "a string" if kind is str else "True or False"
            raise ConfigError(f"The {name!r} parameter of load_model must be {what}. Got {given!r} instead.")
    values = {
        "GGML_MOECACHE_CAPACITY": check_capacity(capacity),
        "GGML_MOECACHE_POLICY": policy,
        "GGML_MOECACHE_PER_LAYER": None if per_layer is None else str(int(per_layer)),
    }
    return {name: value for name, value in values.items() if value is not None}


def _check_n_seq_max(n_seq_max: object) -> None:
    if not isinstance(n_seq_max, int) or isinstance(n_seq_max, bool) or not 1 <= n_seq_max <= MAX_SEQUENCES:
        raise ConfigError(
            f"The 'n_seq_max' parameter of load_model must be a whole number from 1 to {MAX_SEQUENCES}. "
            f"Got {n_seq_max!r} instead."
        )


@contextlib.contextmanager
def _settings(settings: dict[str, str]) -> Iterator[None]:
    """Variables of the plugin, in force inside the block: a context reads them when it is created."""
    before = {name: _plugin.config_get(name) for name in settings}
    try:
        for name, value in settings.items():
            set_variable(name, value)
        yield
    finally:
        for name, value in before.items():
            _plugin.config_set(name, value or None)


def _context_ids() -> set[int]:
    return {context["context_id"] for context in _plugin.status_json()["contexts"]}


def _construct(
    llama_class: type[Llama],
    device: int,
    path: Path,
    settings: dict[str, str],
    arguments: dict[str, Any],
    *,
    top1: Top1Recorder | None,
    n_seq_max: int,
) -> Llama:
    """Construct a Llama on `device`: llama.cpp's parameters have the field, Llama() has no argument for it.

    The same holds for the eval callback of `top1` and for `n_seq_max`.

    The plugin's settings are those of the process, so they are set and taken back under the same lock.
    """
    devices = (ctypes.c_void_p * 2)(device, None)
    low_level: Any = importlib.import_module("llama_cpp.llama_cpp")
    this_thread = threading.get_ident()
    with _construction_lock, _settings(settings):
        original, original_context = low_level.llama_model_default_params, low_level.llama_context_default_params
        callback = None if top1 is None else low_level.ggml_backend_sched_eval_callback(top1.on_node)

        def on_device() -> Any:  # noqa: ANN401 - a ctypes structure of llama-cpp-python
            params = original()
            if threading.get_ident() == this_thread:
                params.devices = ctypes.cast(devices, ctypes.c_void_p).value
            return params

        def with_our_fields() -> Any:  # noqa: ANN401 - the same
            params = original_context()
            if threading.get_ident() == this_thread:
                params.n_seq_max = n_seq_max
                params.kv_unified = n_seq_max > 1  # or llama.cpp cuts a ubatch where ids of sequences have a gap
                if callback is not None:
                    params.cb_eval = callback
            return params

        low_level.llama_model_default_params, low_level.llama_context_default_params = on_device, with_our_fields
        known = _context_ids()
        cache_settings = CacheSettings.in_force()
        try:
            llm: Llama = llama_class(str(path), **arguments)
        finally:
            low_level.llama_model_default_params = original
            low_level.llama_context_default_params = original_context
        created = _context_ids() - known
    llm._moecache_context_id = max(created, default=None)  # noqa: SLF001 - of RoutingRing and set_request_id
    llm._moecache_settings = cache_settings  # noqa: SLF001 - of ExpertCache
    llm.expert_cache = ExpertCache(llm)
    llm._moecache_devices = devices, callback  # noqa: SLF001 - llama.cpp keeps both: they must live as long as the model
    if top1 is not None:
        top1.context_id = llm._moecache_context_id  # noqa: SLF001
        llm._stack.callback(top1.close)  # noqa: SLF001 - before the context, which was made earlier, is freed
        llm._ctx.print_timings = top1.say_no_timings  # noqa: SLF001 - what a verbose Llama prints behind a completion
    return llm


def load_model(
    path: str | Path | None = None,
    *,
    capacity: int | str | None = None,
    policy: str | None = None,
    per_layer: bool | None = None,
    state_in: str | Path | None = None,
    state_out: str | Path | None = None,
    device: str = "MoECache0",
    log: str | Path | None = None,
    log_ring_events: int | None = None,
    log_full: str | None = None,
    live_log: bool = False,
    log_top1_every: int | None = None,
    n_seq_max: int = 1,
    **llama_kwargs: Any,  # noqa: ANN401 - Llama's own arguments
) -> Llama:
    """Load a GGUF model on a MoECache device and return a normal `llama_cpp.Llama`.

    Parameters
    ----------
    path
        The GGUF file (the first part of a split one); None: the small embedded model.
    capacity
        How many experts get a slot on the device: 0 (all are computed by the CPU, from the store in host memory), a
        number, a share ("25%"), memory ("2GiB"), "auto" (what is free) or "all". None: as GGML_MOECACHE_CAPACITY says,
        else 0.
    policy
        Which experts get the slots, name:parameter=value:...; None: as GGML_MOECACHE_POLICY says.
    per_layer
        Slots of its own for each layer; a number or share is then of each layer. None: as GGML_MOECACHE_PER_LAYER says,
        else all layers share.
    state_in
        A session state that the cache starts from: of the same model, capacity and policy (`llm.expert_cache` exports
        them, `moecache simulate --state-out` makes them of traces). One that does not fit is found at the first
        computation: one line, the fallback "state_in" in the status, and a cold start. None: as GGML_MOECACHE_STATE_IN
        says.
    state_out
        Write the session state to this file when the model is closed. None: as GGML_MOECACHE_STATE_OUT says.
    device
        "MoECache<i>": the i-th GPU, or the CPU as a stand-in on a machine without one.
    log
        Write the routing log to this folder, which must not hold one yet; None: as GGML_MOECACHE_LOG says.
    log_ring_events
        Events that the log's ring holds (64 to 2**26).
    log_full
        "drop" (events that do not fit into the ring are lost and counted) or "wait" (the model waits).
    live_log
        Keep the ring for this process instead of a folder: `RoutingRing(llm)` reads it.
    log_top1_every
        Record for every N-th token that is computed (the first one included), and for each layer of the log, the token
        that the final norm and LM head would give from that layer's hidden state: column `top1_token` of the log.
        The graph is cut behind each of these layers and the host computes the logits from a float32 copy of the LM
        head (4 bytes * vocabulary * embedding length), so such a run gives no timings; a full ring makes it wait.
    n_seq_max
        Sequences that the context can hold at once, for llama-cpp-python's low-level batches (Llama's own methods use
        sequence 0 only). More than 1 share a KV cache of `n_ctx` cells.
    **llama_kwargs
        Arguments of `llama_cpp.Llama`. Two defaults differ from its own: `n_gpu_layers=-1` (all layers on the device)
        and `use_mmap=False` (weights are read into the store, whose memory is pinned; a mapping would be a second
        copy).

    Notes
    -----
    The settings are those of this Llama's context. Another context of the same model (llama_init_from_model) reads
    those of the process: the environment, or `ggml_moecache.config.set_value("GGML_MOECACHE_CAPACITY", "25%")`.

    Raises
    ------
    ConfigError
        `capacity` or `policy` is none, `state_in` holds no session state, `n_seq_max` is no number of sequences, a
        setting of the log is out of its range or excludes another, the folder of `log` cannot take a log, or
        `log_top1_every` does not know how this model makes logits of a hidden state.
    ModelFileError
        The file is missing, truncated or not a GGUF.
    MissingDependencyError
        llama-cpp-python or its llama.cpp libraries are not installed.
    BackendError
        The plugin refused the loaded llama.cpp, there is no such device, or llama.cpp could not load the model.

    Examples
    --------
    >>> import ggml_moecache
    >>> llm = ggml_moecache.load_model(capacity="all", verbose=False)
    >>> text = llm.create_completion("SQLite is a library that", max_tokens=8, temperature=0)["choices"][0]["text"]

    """
    for name, given in (("path", path), ("device", device)):
        allowed = (str, os.PathLike) if name == "path" else (str,)
        if not isinstance(given, allowed) and not (name == "path" and given is None):
            raise ConfigError(f"The {name!r} parameter of load_model must be a string. Got {given!r} instead.")
    settings = log_variables(log, log_ring_events, log_full, live_log, log_top1_every)
    settings |= _cache_variables(capacity, policy, per_layer) | _state_variables(state_in, state_out)
    _check_n_seq_max(n_seq_max)
    file = read_model(embedded_model() if path is None else path)
    module, registry = load_backends()
    registry.load_plugin()
    with _construction_lock, _settings(settings):  # says what is wrong with a value, before anything is made
        is_live = check_live_log(settings, log_top1_every)
    address = registry.device(device)
    if address is None or not device.startswith("MoECache"):
        names = [d["name"] for d in registry.devices() if d["name"].startswith("MoECache")]
        found = ", ".join(names)
        raise BackendError(f"The 'device' parameter of load_model must be one of: {found}. Got {device!r} instead.")
    arguments = {"n_gpu_layers": -1, "use_mmap": False, **llama_kwargs}
    top1 = None
    if log_top1_every is not None:
        every, folder = check_top1(log_top1_every, settings, llama_kwargs)
        top1 = Top1Recorder(LogitLens(file), frozenset(file.expert_sizes_bytes()), every, folder)
        arguments["no_perf"] = True
    if log is not None:
        check_new_log(Path(log))
    if is_live or log is not None or _plugin.config_get("GGML_MOECACHE_LOG"):
        describe_run(file, seed=llama_kwargs.get("seed"), top1_every=log_top1_every)
    try:
        return _construct(module.Llama, address, file.path, settings, arguments, top1=top1, n_seq_max=n_seq_max)
    except ValueError as error:
        if "load model" not in str(error) and "create llama_context" not in str(error):
            raise  # an argument that Llama refuses
        raise BackendError(
            f"llama.cpp could not load {file.path} on {device} ({error}); verbose=True shows why"
        ) from error


def status() -> dict[str, Any]:
    """State of every llama context on a MoECache device in this process, as GGML_MOECACHE_STATUS=FILE has it.

    Each of "contexts" has a "reason" of its own (REASONS.md); the one beside them is the process's: the plugin refused
    to be used, or never was.

    Raises BackendError if no model has been loaded with `load_model` yet.
    """
    try:
        registry = _plugin.Registry()
    except BackendError:
        raise BackendError("The plugin is not loaded in this process: call load_model first.") from None
    if registry.device("MoECache0") is None:
        raise BackendError("The plugin is not loaded in this process: call load_model first.")
    return _plugin.status_json()
