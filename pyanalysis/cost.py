"""The cost model of the simulator: a JSON file that cost.schema.json describes.

Time of an event of n experts, h of them hits: other_layer_ns + max(h * gpu_hit_ns, cpu), where cpu is 0 without a
miss, else cpu_event_ns + (n - h) * cpu_miss_ns: the CPU computes the misses beside the GPU. A token costs
other_token_ns on top. A copy occupies the one copy queue for copy_latency_ns + bytes / copy_bandwidth_bytes_per_s, and
its event takes copy_event_ns longer: handing it over, and the memory bandwidth that it takes from the CPU. (With ideal
timing copies cost nothing.)

`moecache calibrate` writes such a file; a cost that it could not measure is null there, and the file is then refused:
no time follows from it.
"""

from __future__ import annotations

import functools
import json
import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import jsonschema

from ggml_moecache.errors import ConfigError

SCHEMA_PATH = Path(__file__).with_name("cost.schema.json")
COSTS = (
    *("cpu_miss_ns", "cpu_event_ns", "gpu_hit_ns", "other_layer_ns", "other_token_ns"),
    *("copy_latency_ns", "copy_event_ns"),
)


@dataclass(frozen=True)
class CostModel:
    """Fields, units and rules as in cost.schema.json. Raises ConfigError for a value that the schema refuses."""

    name: str
    description: str
    sources: tuple[str, ...]
    expert_bytes: int | None
    cpu_miss_ns: float
    gpu_hit_ns: float
    other_layer_ns: float
    copy_latency_ns: float
    copy_bandwidth_bytes_per_s: float
    cpu_event_ns: float = 0.0
    other_token_ns: float = 0.0
    copy_event_ns: float = 0.0

    def __post_init__(self) -> None:
        value = self.to_json()
        check(value, "CostModel")
        _refuse_nulls(value, "CostModel")
        if self.expert_bytes is not None:
            object.__setattr__(self, "expert_bytes", int(self.expert_bytes))  # 2e6 is an integer of JSON Schema

    def event_ns(self, n_experts: int, n_hits: int) -> float:
        """Time of an event, by the formula above."""
        n_misses = n_experts - n_hits
        cpu_ns = self.cpu_event_ns + n_misses * self.cpu_miss_ns if n_misses else 0.0
        return self.other_layer_ns + max(n_hits * self.gpu_hit_ns, cpu_ns)

    def copy_ns(self, n_bytes: int) -> float:
        """Time of a copy on the copy queue."""
        return self.copy_latency_ns + n_bytes / self.copy_bandwidth_bytes_per_s * 1e9

    def to_json(self) -> dict[str, Any]:
        """The object that load() reads."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["sources"] = list(self.sources)
        return {"format": {"name": "ggml_moecache cost model", "version": 1}, **values}

    def scaled(self, field: str, factor: float) -> CostModel:
        """A copy with one cost multiplied: what a sensitivity analysis varies. Raises ConfigError for another field."""
        names = (*COSTS, "copy_bandwidth_bytes_per_s")
        if field not in names:
            raise ConfigError(f"a cost that can be scaled is one of {', '.join(names)}. Got {field!r} instead.")
        return replace(self, name=f"{self.name}, {field} x {factor:g}", **{field: getattr(self, field) * factor})


def load(path: str | Path) -> CostModel:
    """The cost model in a file. Raises ConfigError, which names file, field and rule."""
    path = Path(path)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}: not JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:  # a number of more than 4,300 digits; brackets without end
        raise ConfigError(f"{path}: not a cost model: {error}") from None
    check(value, str(path))
    _refuse_nulls(value, str(path))
    costs = {name: value[name] for name in value if name not in ("format", "calibration")}
    return CostModel(**{**costs, "sources": tuple(value["sources"])})


@functools.cache
def _validator() -> Any:  # noqa: ANN401 - jsonschema has no types
    return jsonschema.Draft202012Validator(json.loads(SCHEMA_PATH.read_text(encoding="utf-8")))


def check(value: object, place: str) -> None:
    """Raises ConfigError, which names `place`, field and rule, if `value` is not as the schema says."""
    if (found := _not_finite(value)) is not None:
        path, number = found
        raise ConfigError(f"{place}: {path}: {json.dumps(number)} is not a finite number")
    error = jsonschema.exceptions.best_match(_validator().iter_errors(value))
    if error is not None:
        field = ".".join(map(str, error.absolute_path)) or "the cost model"
        raise ConfigError(f"{place}: {field}: {error.message}")


def _not_finite(value: object, path: str = "") -> tuple[str, float] | None:
    """(field, value) of the first NaN or infinity, which pass every comparison of a schema or overflow later."""
    if isinstance(value, float) and not math.isfinite(value):
        return path or "the cost model", float(value)
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        if found := _not_finite(part, f"{path}.{name}" if path else str(name)):
            return found
    return None


def _refuse_nulls(value: dict[str, Any], place: str) -> None:
    missing = [name for name in (*COSTS, "copy_bandwidth_bytes_per_s") if name in value and value[name] is None]
    if missing:
        raise ConfigError(
            f"{place}: {', '.join(missing)}: null, which means not measured; no time follows from this file. Run "
            "moecache calibrate on the machine with the GPU, or write the figures in."
        )
