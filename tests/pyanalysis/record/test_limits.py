"""Values that `moecache record` refuses in one line instead of failing over them."""

from __future__ import annotations

import pytest

from pyanalysis import cli


@pytest.fixture
def record(monkeypatch, capsys, tmp_path):
    def run(*arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.argv", ["moecache", "record", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, capsys.readouterr().err

    return run


@pytest.mark.parametrize(("name", "text"), [("deep.json", "[" * 100_000), ("deep.jsonl", '{"a":' * 100_000)])
def test_brackets_without_end(record, tmp_path, name, text):
    (tmp_path / name).write_text(text)
    code, err = record("--workload", name)
    assert (code, err.count("\n")) == (2, 1)
    assert f"{name}:1: not " in err


def test_more_threads_than_llama_cpp_takes(record, tmp_path):
    (tmp_path / "prompt.txt").write_text("SQLite is")
    assert record("--workload", "prompt.txt", "-t", "513") == (
        2,
        "moecache: error: --threads must be at most 512, as in llama.cpp. Got 513 instead.\n",
    )
