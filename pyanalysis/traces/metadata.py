"""run.json: reading it, checking it, and the little of it that tools look at."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from pyanalysis.traces.errors import TraceError
from pyanalysis.traces.event import FORMAT_NAME, FORMAT_VERSION
from pyanalysis.traces.lines import shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Metadata = dict[str, Any]

_MODEL_FIELDS = (
    *("file", "architecture", "quantization", "sha256", "fingerprint", "n_layers", "n_experts", "top_k"),
    *("expert_bytes", "moe_layers", "layers_with_output_rows_only"),
)
_RUN_FIELDS = (
    *("run_id", "format", "created", "model", "llama_cpp", "cuda", "cpu_name", "gpu_names", "capacity", "policy"),
    *("policy_parameters", "seed", "warmup_tokens", "benchmark"),
)
_LOG_NAME = re.compile(r"routing(-\d+)?\.jsonl")


def blank(run_id: str) -> Metadata:
    """A run.json of which nothing but the run's id is known."""
    unknown: Metadata = dict.fromkeys(_RUN_FIELDS)
    return {
        **unknown,
        "run_id": run_id,
        "format": {"name": FORMAT_NAME, "version": FORMAT_VERSION},
        "model": dict.fromkeys(_MODEL_FIELDS),
    }


def session_changes(metadata: Metadata | None, log: Path) -> int:
    """How often the session of this log's cache was changed from outside; 0 also where nothing is known."""
    for context in (metadata or {}).get("contexts") or []:
        if context.get("file") == log.name and isinstance(context.get("session_changes"), int):
            return int(context["session_changes"])
    return 0


def path_for(log: Path) -> Path:
    """Where the metadata of a JSON Lines file is: run.json if it is a routing(-N).jsonl, else NAME.run.json."""
    return log.with_name("run.json" if _LOG_NAME.fullmatch(log.name) else f"{log.stem}.run.json")


def read(path: Path) -> Metadata | None:
    """The metadata in `path`, None if there is no such file. Raises TraceError if it is not a run.json that we know."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(path, None, f"cannot be read: {error}") from None
    return parse(path, text)


def parse(path: Path, text: str) -> Metadata:
    """The metadata that `text` holds; `path` is named in errors. Raises TraceError."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise TraceError(path, error.lineno, f"not JSON: {error.msg} at column {error.colno}") from None
    if reason := _reason_against(value):
        raise TraceError(path, None, reason)
    metadata: Metadata = value
    return metadata


def _reason_against(value: object) -> str | None:
    if not isinstance(value, dict):
        return "not a run.json: it must be one JSON object"
    kind = value.get("format")
    if not isinstance(kind, dict) or kind.get("name") != FORMAT_NAME:
        return f'not the run.json of a routing log: format must be {{"name": "{FORMAT_NAME}", "version": ...}}'
    if reason := _reason_against_version(kind.get("version")):
        return reason
    if not isinstance(value.get("run_id"), str) or not value["run_id"]:
        return f"run_id must be a string that is not empty, got {shown(value.get('run_id'))}"
    missing = [name for name in _RUN_FIELDS if name not in value]
    if missing:
        return f"lacks the field {missing[0]} (null where it is not known)"
    return (
        _reason_against_model("model", value["model"])
        or _reason_against_contexts(value.get("contexts"))
        or _reason_against_top1(value)
    )


def _reason_against_version(version: object) -> str | None:
    if type(version) is not int or version < 1:
        return f"format.version must be a whole number of at least 1, got {shown(version)}"
    if version > FORMAT_VERSION:
        return f"format version {version} is newer than version {FORMAT_VERSION}, which this program reads; update it"
    return None


def _reason_against_model(name: str, model: object) -> str | None:
    if model is None:
        return None
    if not isinstance(model, dict):
        return f"{name} must be an object or null, got {shown(model)}"
    for field in _MODEL_FIELDS:
        if field not in model:
            return f"{name} lacks the field {field} (null where it is not known)"
        words, check = _MODEL_RULES.get(field, ("a string", lambda value: isinstance(value, str)))
        if model[field] is not None and not check(model[field]):
            return f"{name}.{field} must be {words} or null, got {shown(model[field])}"
    return None


def _reason_against_contexts(contexts: object) -> str | None:
    if contexts is None:
        return None
    if not isinstance(contexts, list):
        return f"contexts must be a list or null, got {shown(contexts)}"
    for index, context in enumerate(contexts):
        if not isinstance(context, dict) or not _is_count(context.get("context_id")):
            return f"contexts[{index}] must be an object with a context_id, got {shown(context)}"
        if reason := _reason_against_model(f"contexts[{index}].model", context.get("model")):
            return reason
    return None


def _reason_against_top1(value: Metadata) -> str | None:
    every = value.get("top1_every")
    if every is not None and not (_is_count(every) and every > 0):
        return f"top1_every must be a whole number of at least 1 or null, got {shown(every)}"
    if not isinstance(value.get("timings", True), bool):
        return f"timings must be true or false, got {shown(value['timings'])}"
    return None


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_layout(value: object) -> bool:
    return (
        isinstance(value, dict)
        and all(_is_count(value.get(name)) for name in ("layer_id", "n_experts", "bytes"))
        and isinstance(value.get("family"), str)
    )


def _is_list_of(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(map(check, value))


_MODEL_RULES: dict[str, tuple[str, Callable[[object], bool]]] = {
    **dict.fromkeys(("n_layers", "n_experts", "top_k"), ("a whole number of at least 0", _is_count)),
    **dict.fromkeys(("moe_layers", "layers_with_output_rows_only"), ("a list of layers", _is_list_of(_is_count))),
    "expert_bytes": ("a list of {layer_id, family, n_experts, bytes}", _is_list_of(_is_layout)),
}


# --- what tools ask -------------------------------------------------------------------------------------------------


def model_of(metadata: Metadata, context_id: int) -> Metadata:
    """What is known of the model of a context: its own if it has one, else the run's; every field may be null."""
    for context in metadata.get("contexts") or []:
        if context["context_id"] == context_id and context.get("model"):
            own: Metadata = context["model"]
            return own
    model: Metadata = metadata.get("model") or dict.fromkeys(_MODEL_FIELDS)
    return model


def experts_of(model: Metadata, layer: int, family: str) -> int | None:
    """Number of experts of a layer and family, None if not known."""
    for layout in model["expert_bytes"] or []:
        if layout["layer_id"] == layer and layout["family"] == family:
            count: int = layout["n_experts"]
            return count
    n_experts: int | None = model["n_experts"]
    return n_experts if family == "exps" else None


def has_timings(metadata: Metadata) -> bool:
    """Whether durations of the run mean anything: not where something (the recording of top1_token) cut its graphs."""
    return metadata.get("timings") is not False


def in_common(models: list[Metadata]) -> Metadata:
    """The fields in which all `models` agree; null where they differ."""
    first, *others = models
    return {name: value if all(m.get(name) == value for m in others) else None for name, value in first.items()}


def united(models: list[Metadata]) -> Metadata:
    """The one model of which each of `models` describes some layers.

    Lists by layer are put together and counts are the largest (null where one of them is); of the rest what they have
    in common.
    """
    result = in_common(models)
    for name in ("n_layers", "n_experts"):
        counts = [model[name] for model in models]
        result[name] = None if None in counts else max(counts)
    for name in ("moe_layers", "layers_with_output_rows_only", "expert_bytes"):
        lists = [model[name] for model in models]
        result[name] = None
        if None not in lists:
            entries = {_layer_of(entry): entry for one in lists for entry in one}
            result[name] = [entries[key] for key in sorted(entries)]
    return result


def _layer_of(entry: int | dict[str, Any]) -> tuple[int, str]:
    return (entry, "") if isinstance(entry, int) else (entry["layer_id"], entry["family"])


def edited(metadata: Metadata, tool: str, **what: Any) -> Metadata:  # noqa: ANN401 - any JSON
    """A copy of `metadata` that says what `tool` has done to the log."""
    return {**metadata, "edits": [*(metadata.get("edits") or []), {"tool": tool, **what}]}
