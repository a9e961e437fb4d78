"""Fixtures for all tests: the build under test, and the option that runs the full product of families and types."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# pytest's importlib mode leaves sys.path alone; the helpers are imported as tests.harness, tests.models.
ROOT = str(Path(__file__).resolve().parents[1])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from tests.harness.environment import Build, MissingBuild, find_build  # noqa: E402


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="every family in every type, not the covering subset")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: runs with --full only; the rest covers every family and every type too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    if left_out:
        items[:] = [item for item in items if not item.get_closest_marker("full")]
        config.hook.pytest_deselected(items=left_out)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not config.getoption("--full"):
        terminalreporter.write_line("covering subset of families and types; pytest --full runs their full product")


@pytest.fixture(scope="session")
def build() -> Build:
    """Plugin and llama.cpp programs; the test fails, it is not skipped, if they are missing."""
    try:
        return find_build()
    except MissingBuild as error:
        message = str(error)
    pytest.fail(message, pytrace=False)
