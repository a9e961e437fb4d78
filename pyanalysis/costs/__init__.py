"""The cost models that ship with the package, by name; `--cost` takes a name or a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ggml_moecache.errors import ConfigError
from pyanalysis import cost

if TYPE_CHECKING:
    from pyanalysis.cost import CostModel

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The names of the shipped cost models."""
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


def load(name_or_path: str) -> CostModel:
    """The shipped cost model of this name, else the one in the file. Raises ConfigError if there is neither."""
    if not name_or_path:
        raise ConfigError(
            f"a cost model has no name; name a file or one that ships with moecache ({', '.join(names())})"
        )
    if name_or_path in names():
        return cost.load(_FOLDER / f"{name_or_path}.json")
    if not Path(name_or_path).exists():
        raise ConfigError(
            f"'{name_or_path}' is no cost model: neither a file nor one that ships with moecache ({', '.join(names())})"
        )
    return cost.load(name_or_path)
