"""The installed package: it is the real one, complete, and of the version that pyproject.toml names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ggml_moecache
from ggml_moecache import _native, errors

ROOT = Path(__file__).resolve().parents[2]


def test_imported_package_is_the_installed_one():
    """From the repository root an uninstalled package would import as an empty namespace (the C++ folder)."""
    assert ggml_moecache.__file__ is not None
    assert "site-packages" in Path(ggml_moecache.__file__).parts


def test_versions():
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert ggml_moecache.__version__ == version[1]
    assert ggml_moecache.ggml_version == "0.25.3"


def test_files_of_the_package():
    assert ggml_moecache.backend_path().name == "libggml-moecache.so"
    assert ggml_moecache.embedded_model().stat().st_size == 18_274_336
    folder = Path(ggml_moecache.__file__).parent
    assert (folder / "py.typed").is_file()
    assert (folder / "include" / "ggml-moecache.h").is_file()


def test_public_names_exist():
    assert [name for name in ggml_moecache.__all__ if not hasattr(ggml_moecache, name)] == []


def test_variables_are_the_documented_ones():
    table = {v.name: v for v in _native.variables()}
    assert list(table) == [
        "GGML_MOECACHE_CAPACITY",
        "GGML_MOECACHE_PER_LAYER",
        "GGML_MOECACHE_POLICY",
        "GGML_MOECACHE_SYNC",
        "GGML_MOECACHE_RESERVE_MIB",
        "GGML_MOECACHE_EXPERT_SHARE",
        "GGML_MOECACHE_STATE_IN",
        "GGML_MOECACHE_STATE_OUT",
        "GGML_MOECACHE_STANDIN_COPY_DELAY_US",
        "GGML_MOECACHE_STANDIN_COPY_MIB_S",
        "GGML_MOECACHE_STATUS",
        "GGML_MOECACHE_DEVICE_MIB",
        "GGML_MOECACHE_STANDIN",
        "GGML_MOECACHE_LOG",
        "GGML_MOECACHE_LOG_RING_EVENTS",
        "GGML_MOECACHE_LOG_FULL",
        "GGML_MOECACHE_LOG_LIVE",
        "MOECACHE_REQUIRE",
    ]
    assert {name: v.default for name, v in table.items() if v.default} == {
        "GGML_MOECACHE_CAPACITY": "0",
        "GGML_MOECACHE_PER_LAYER": "0",
        "GGML_MOECACHE_POLICY": "decayed-lfu",
        "GGML_MOECACHE_SYNC": "0",
        "GGML_MOECACHE_RESERVE_MIB": "512",
        "GGML_MOECACHE_EXPERT_SHARE": "50%",
        "GGML_MOECACHE_STANDIN_COPY_DELAY_US": "0",
        "GGML_MOECACHE_STANDIN_COPY_MIB_S": "0",
        "GGML_MOECACHE_STANDIN": "0",
        "GGML_MOECACHE_LOG_RING_EVENTS": "262144",
        "GGML_MOECACHE_LOG_FULL": "drop",
        "GGML_MOECACHE_LOG_LIVE": "0",
        "MOECACHE_REQUIRE": "0",
    }
    assert all(v.values and v.summary.endswith(".") for v in table.values())


def test_reasons_are_unique_and_explained():
    reasons = _native.reasons()
    names = [r.name for r in reasons]
    assert names[0] == "none"
    assert len(set(names)) == len(names)
    assert {"no_gpu", "ggml_version", "no_expert_tensors", "no_room"} <= set(names)
    assert all(r.text.endswith(".") for r in reasons)


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.ConfigError, ValueError),
        (errors.ModelFileError, ValueError),
        (errors.MissingDependencyError, ImportError),
        (errors.BackendError, Exception),
    ],
)
def test_errors_form_one_tree(error, builtin):
    assert issubclass(error, errors.MoeCacheError)
    assert issubclass(error, builtin)
