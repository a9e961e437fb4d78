"""The session functions of the plugin's C API, as the worker's steps call them."""

from __future__ import annotations

import ctypes
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.harness.plan import Step


class Sessions:
    """The plugin that this process has loaded."""

    def __init__(self, plugin: str) -> None:
        self._api = ctypes.CDLL(plugin)
        number, text = ctypes.c_uint64, ctypes.c_char_p
        for name, arguments in (
            ("reset", []),
            ("freeze", [ctypes.c_int]),
            ("export_file", [text]),
            ("import_file", [text]),
        ):
            function = getattr(self._api, f"moecache_session_{name}")
            function.restype, function.argtypes = text, [number, *arguments]
        self._api.moecache_status_json.restype = ctypes.c_size_t
        self._api.moecache_status_json.argtypes = [text, ctypes.c_size_t]

    def context_ids(self) -> set[int]:
        """Ids of all contexts that the status knows."""
        size = 1 << 20
        buffer = ctypes.create_string_buffer(size)
        assert self._api.moecache_status_json(buffer, size) <= size
        return {context["context_id"] for context in json.loads(buffer.value)["contexts"]}

    def perform(self, step: Step, context_id: int) -> str | None:
        """Carry out a step that is named <function>-session; its message, None: none."""
        action = step.action.removesuffix("-session")
        if action == "reset":
            message = self._api.moecache_session_reset(context_id)
        elif action == "freeze":
            message = self._api.moecache_session_freeze(context_id, int(step.scale))
        elif action in ("export", "import"):
            function = getattr(self._api, f"moecache_session_{action}_file")
            message = function(context_id, step.path.encode())
        else:
            raise ValueError(f"unknown step '{step.action}'")
        return message.decode() if message is not None else None
