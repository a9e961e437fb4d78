"""The program `moecache`: version, help, the table of settings, and exit statuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ggml_moecache
import pyanalysis
from ggml_moecache import _native

MOECACHE = Path(sys.executable).with_name("moecache")


def moecache(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([MOECACHE, *arguments], env=environment, capture_output=True, text=True, check=False)


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


def configured(**environment: str) -> dict[str, str]:
    """The environment of the tests without variables of the plugin, and `environment`."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("GGML_MOECACHE_", "MOECACHE_"))} | environment


def test_config_lists_every_variable():
    result = moecache("config", environment=configured())
    assert (result.returncode, result.stderr) == (0, "")
    assert "  GGML_MOECACHE_CAPACITY=0  (a number of experts, a share like 25%, " in result.stdout
    assert "  GGML_MOECACHE_STATUS is not set  (a file name; no default)\n" in result.stdout
    for variable in ggml_moecache.config.variables():
        assert f"  {variable.name}{'=' if variable.default else ' is not set'}" in result.stdout
    assert "* GGML" not in result.stdout
    assert result.stdout.endswith("\n* in the environment, not the default: 0\n")


def test_config_marks_what_differs_from_the_default():
    """An empty value is none; one that is the default's is no difference."""
    values = {"CAPACITY": "25%", "STATUS": "s.json", "POLICY": "", "SYNC": "0"}
    environment = configured(**{f"GGML_MOECACHE_{name}": value for name, value in values.items()})
    result = moecache("config", environment=environment)
    assert "\n* GGML_MOECACHE_STATUS=s.json  (a file name; no default)\n" in result.stdout
    stars = [line.split()[1] for line in result.stdout.splitlines() if line.startswith("* GGML")]
    assert stars == ["GGML_MOECACHE_CAPACITY=25%", "GGML_MOECACHE_STATUS=s.json"]
    assert f"  GGML_MOECACHE_POLICY={_native.default_policy}  (" in result.stdout
    rows = {row["name"]: row for row in json.loads(moecache("config", "--json", environment=environment).stdout)}
    assert (rows["GGML_MOECACHE_CAPACITY"]["value"], rows["GGML_MOECACHE_CAPACITY"]["is_default"]) == ("25%", False)
    assert sum(not row["is_default"] for row in rows.values()) == 2


def test_config_as_json():
    rows = json.loads(moecache("config", "--json", environment=configured()).stdout)
    assert rows[0]["name"] == "GGML_MOECACHE_CAPACITY"
    assert {"name", "value", "default", "is_default", "values", "summary"} == set(rows[0])
    assert len(rows) == len(ggml_moecache.config.variables())
    assert all(row["is_default"] and row["value"] == row["default"] for row in rows)


@pytest.mark.parametrize("arguments", [["config", "--json"], ["doctor", "--json"]])
def test_a_misspelt_variable_is_warned_of(arguments):
    environment = configured(GGML_MOECACHE_CAPASITY="25%", GGML_MOECACHE_XYZ="1", GGML_MOECACHE_HOME="h")
    result = moecache(*arguments, environment=environment)
    warnings = [line for line in result.stderr.splitlines() if line.startswith("moecache: warning: ")]
    what = "is set and is no variable of ggml_moecache: it does nothing;"
    assert warnings == [
        f"moecache: warning: GGML_MOECACHE_CAPASITY {what} did you mean GGML_MOECACHE_CAPACITY?",
        f"moecache: warning: GGML_MOECACHE_XYZ {what} moecache config lists those that there are",
    ]
    assert result.returncode == 0
