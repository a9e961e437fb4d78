"""The plugin's settings: what there is, and setting them inside the process.

A setting of the process wins over the environment; a llama context reads its settings once, when it is created.
"""

from __future__ import annotations

from ggml_moecache import _native, _plugin
from ggml_moecache._native import Variable
from ggml_moecache.model import import_llama_cpp

__all__ = ["Variable", "get", "set_value", "variables"]


def variables() -> list[Variable]:
    """Every variable with its default, the values it takes and a summary."""
    return _native.variables()


def set_value(name: str, value: str | None) -> None:
    """Set the variable `name` for this process; None takes the setting back.

    Raises ConfigError, with the variable, the rule and the value, if `name` or `value` is not one of the table's.
    """
    import_llama_cpp()
    _plugin.config_set(name, value)


def get(name: str) -> str:
    """The value in force for `name` ("" when there is none). Raises ConfigError if `name` is no variable."""
    import_llama_cpp()
    return _plugin.config_get(name)
