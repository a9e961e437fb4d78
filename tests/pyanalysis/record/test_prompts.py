"""Prompt files: every form that is read, and every way in which one can be malformed, with file, line and reason."""

from __future__ import annotations

import hashlib
import json

import pytest

from ggml_moecache.errors import ConfigError
from pyanalysis.record.prompts import read_prompts

KEYS = "must have the key prompt, conversations (ShareGPT), or context and input (LongBench)"
LONGBENCH = {
    "input": "Who wrote it?",
    "context": "Passage 1: A book.",
    "answers": ["Ann"],
    "length": 7,
    "dataset": "hotpotqa",
    "language": "en",
    "all_classes": None,
    "_id": "a1",
}


def sharegpt(*turns: tuple[str, str]) -> dict:
    return {"id": "x", "conversations": [{"from": who, "value": what} for who, what in turns]}


def texts(path) -> list[str]:
    return [prompt.text for prompt in read_prompts(path).prompts]


def test_json_lines_with_prompt(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"id": 1, "prompt": "one\\u2028still one"}\n\n{"prompt": "two"}\n')
    found = read_prompts(path)
    assert [(p.text, p.place) for p in found.prompts] == [("one\u2028still one", f"{path}:1"), ("two", f"{path}:3")]
    assert (found.file, found.sha256) == ("mine.jsonl", hashlib.sha256(path.read_bytes()).hexdigest())


def test_longbench(tmp_path):
    path = tmp_path / "hotpotqa.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in (LONGBENCH, {**LONGBENCH, "input": ""})))
    assert texts(path) == ["Passage 1: A book.\n\nWho wrote it?", "Passage 1: A book."]


def test_sharegpt(tmp_path):
    """An answer may come first, and a conversation without a human gives no prompt: it is counted."""
    conversations = [
        sharegpt(("human", "Hello"), ("gpt", "Hi"), ("human", "More")),
        sharegpt(("gpt", "I went on"), ("user", "Stop")),
        sharegpt(("gpt", "alone")),
        sharegpt(),
    ]
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps(conversations, indent=2))
    found = read_prompts(path)
    assert [p.text for p in found.prompts] == ["Hello", "Stop"]
    assert found.n_left_out == 2
    lines = path.read_text().splitlines()
    starts = [i + 1 for i, line in enumerate(lines) if line == "  {"]
    assert [p.place for p in found.prompts] == [f"{path}:{line}" for line in starts[:2]]


def test_plain_text_is_one_prompt(tmp_path):
    path = tmp_path / "story.txt"
    path.write_bytes(b"\xef\xbb\xbfOnce\nupon a time\n")
    assert texts(path) == ["Once\nupon a time\n"]


def test_a_folder_is_a_prompt_per_text_file(tmp_path):
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "c.md").write_text("no prompt")
    found = read_prompts(tmp_path)
    assert [p.text for p in found.prompts] == ["first", "second"]
    sums = "".join(
        f"{hashlib.sha256(t.encode()).hexdigest()}  {n}\n" for t, n in (("first", "a.txt"), ("second", "b.txt"))
    )
    assert found.sha256 == hashlib.sha256(sums.encode()).hexdigest()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"prompt": "x"}\n{"prompt": "y"', "a.jsonl:2: not JSON: Expecting ',' delimiter at column 15"),
        ("a.jsonl", '{"prompt": "x"}\n[1]\n', "a.jsonl:2: a record must be a JSON object, got [1]"),
        ("a.jsonl", '{"text": "x", "id": 1}\n', f"a.jsonl:1: {KEYS}; it has text, id"),
        ("a.jsonl", '{"prompt": "x"}\n{"context": "c", "input": "i"}\n',
         "a.jsonl:2: is a LongBench record, but line 1 is a prompt record"),
        ("a.jsonl", '{"prompt": 5}\n', "a.jsonl:1: prompt must be a string, got 5"),
        ("a.jsonl", '\n{"prompt": " "}\n', "a.jsonl:2: prompt is empty"),
        ("a.jsonl", '{"prompt": "\\ud800"}\n', "a.jsonl:1: holds half of a surrogate pair, which is no text"),
        ("a.jsonl", '{"context": null, "input": ""}\n', "a.jsonl:1: context must be a string, got null"),
        ("a.jsonl", "", "a.jsonl: holds no prompt; it is empty, or no conversation has a turn of a human"),
        ("a.json", '[{"prompt": "x"},\n {"prompt": "y"}',
         "a.json:2: not JSON: the array is not closed, or a comma is missing; is the file cut off?"),
        ("a.json", '[{"prompt": "x"},\n {"prompt": }]', "a.json:2: not JSON: Expecting value at column 13"),
        ("a.json", '[{"prompt": "x"}]\nmore', "a.json:1: text stands behind the end of the JSON array"),
        ("a.json", '[\n{"conversations": "x"}]', 'a.json:2: conversations must be a list, got "x"'),
        ("a.json", '[{"conversations": [{"from": "human"}]}]',
         'a.json:1: turn 1 must have the strings from and value, got {"from": "human"}'),
        ("a.txt", " \n", "a.txt: holds no prompt: the file is empty"),
    ],
)  # fmt: skip
def test_malformed(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        read_prompts(path)
    assert str(caught.value) == f"{tmp_path}/{message}"


def test_not_utf8(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"prompt": "x"}\n{"prompt": "\xff"}\n')
    with pytest.raises(ConfigError, match=r"a\.jsonl:2: is not UTF-8: invalid start byte at byte 28 of the file"):
        read_prompts(path)


def test_no_file_and_no_text_file(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere: cannot be read: No such file or directory"):
        read_prompts(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"is a folder without \*\.txt files"):
        read_prompts(tmp_path)
