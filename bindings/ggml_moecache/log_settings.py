"""The parameters of load_model that are about the routing log: their rules, and the plugin's variables for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ggml_moecache import _plugin
from ggml_moecache.errors import ConfigError

# Parameters whose values the plugin checks.
_PARAMETERS = {"GGML_MOECACHE_LOG_RING_EVENTS": "log_ring_events", "GGML_MOECACHE_LOG_FULL": "log_full"}


def log_variables(
    log: object, log_ring_events: object, log_full: object, live_log: object, log_top1_every: object
) -> dict[str, str]:
    """The plugin's variables for these parameters. Raises ConfigError for a type that a parameter cannot have."""
    if log is not None and (not isinstance(log, (str, os.PathLike)) or os.fspath(log) == ""):
        raise ConfigError(f"The 'log' parameter of load_model must name a folder. Got {log!r} instead.")
    if not isinstance(live_log, bool):
        raise ConfigError(f"The 'live_log' parameter of load_model must be True or False. Got {live_log!r} instead.")
    if log_full is None and log_top1_every is not None:
        log_full = "wait"
    values = (
        ("GGML_MOECACHE_LOG", None if log is None else os.fspath(log)),
        ("GGML_MOECACHE_LOG_RING_EVENTS", log_ring_events),
        ("GGML_MOECACHE_LOG_FULL", log_full),
        ("GGML_MOECACHE_LOG_LIVE", "1" if live_log else None),
    )
    return {name: str(value) for name, value in values if value is not None}


def set_variable(name: str, value: str) -> None:
    """Set a variable of the plugin. Raises ConfigError, which names the parameter where there is one for it."""
    try:
        _plugin.config_set(name, value)
    except ConfigError as error:
        if name not in _PARAMETERS:
            raise
        raise ConfigError(str(error).replace(name, f"The {_PARAMETERS[name]!r} parameter of load_model", 1)) from None


def check_live_log(settings: dict[str, str], log_top1_every: object) -> bool:
    """Whether the model will log live. Raises ConfigError for what excludes it. REQUIRES: the plugin is loaded."""

    def in_force(name: str) -> str:
        return settings.get(name) or _plugin.config_get(name)

    if in_force("GGML_MOECACHE_LOG_LIVE") != "1":
        return False
    if folder := in_force("GGML_MOECACHE_LOG"):
        raise ConfigError(
            "The 'live_log' parameter of load_model must be False when 'log' or GGML_MOECACHE_LOG names a folder "
            f"({folder}): the ring has one consumer. Got True instead."
        )
    if log_top1_every is not None:
        raise ConfigError(
            "The 'log_top1_every' parameter of load_model must be None with 'live_log': the column is written beside a "
            f"log in a folder. Got {log_top1_every!r} instead."
        )
    if in_force("GGML_MOECACHE_LOG_FULL") == "wait":
        raise ConfigError(
            "The 'log_full' parameter of load_model must be 'drop' with 'live_log': the consumer may be the thread "
            "that waits. Got 'wait' instead."
        )
    return True


def check_top1(every: object, settings: dict[str, str], arguments: dict[str, Any]) -> tuple[int, Path]:
    """(every, folder of the log). Raises ConfigError for what excludes the recording of top1_token."""
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise ConfigError(
            f"The 'log_top1_every' parameter of load_model must be a whole number of at least 1. Got {every!r} instead."
        )
    folder = settings.get("GGML_MOECACHE_LOG") or _plugin.config_get("GGML_MOECACHE_LOG")
    if not folder:
        raise ConfigError("The 'log_top1_every' parameter of load_model needs a folder for the log: give 'log' too.")
    if settings.get("GGML_MOECACHE_LOG_FULL") == "drop":
        raise ConfigError(
            "The 'log_full' parameter of load_model must be 'wait' with 'log_top1_every': rows of a ubatch of which "
            "events were lost could not be told apart. Got 'drop' instead."
        )
    if arguments.get("no_perf") is False:
        raise ConfigError(
            "The 'no_perf' parameter of load_model must be True with 'log_top1_every', which cuts every graph: such a "
            "run gives no timings. Got False instead."
        )
    if arguments.get("lora_path") is not None:
        raise ConfigError(
            "The 'lora_path' parameter of load_model excludes 'log_top1_every', which reads the GGUF only."
        )
    return every, Path(folder)
