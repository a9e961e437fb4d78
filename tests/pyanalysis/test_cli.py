"""The program `moecache`: version, help, the table of settings, and exit statuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import ggml_moecache
import pyanalysis

MOECACHE = Path(sys.executable).with_name("moecache")


def moecache(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([MOECACHE, *arguments], capture_output=True, text=True, check=False)


def test_package_is_a_real_one():
    assert pyanalysis.__file__ is not None


def test_version():
    result = moecache("--version")
    assert result.returncode == 0
    assert result.stdout == f"moecache {ggml_moecache.__version__} (ggml 0.25.3)\n"


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["doctor", "--help"], ["config", "--help"]])
def test_help_has_examples(arguments):
    result = moecache(*arguments)
    assert result.returncode == 0
    assert "example" in result.stdout
    assert f"moecache {arguments[0] if len(arguments) > 1 else 'run'}" in result.stdout


def test_no_command():
    result = moecache()
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("usage: moecache")


def test_unknown_command():
    result = moecache("frobnicate")
    assert result.returncode == 2
    assert "frobnicate" in result.stderr


def test_config_lists_every_variable():
    result = moecache("config")
    assert result.returncode == 0
    assert "GGML_MOECACHE_CAPACITY  (a number of experts, a share like 25%, " in result.stdout
    assert "GGML_MOECACHE_STATUS  (a file name; no default)\n" in result.stdout
    for variable in ggml_moecache.config.variables():
        assert f"{variable.name}  (" in result.stdout


def test_config_as_json():
    rows = json.loads(moecache("config", "--json").stdout)
    assert rows[0]["name"] == "GGML_MOECACHE_CAPACITY"
    assert {"name", "default", "values", "summary"} == set(rows[0])
    assert len(rows) == len(ggml_moecache.config.variables())
