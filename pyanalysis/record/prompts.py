"""Prompt files as users have them, read into one list of prompts.

A file of JSON records (JSON Lines, or one JSON array) is known by the keys of its records:
    prompt            the prompt
    context, input    LongBench: the context, an empty line, the input; `answers` and the rest are not used
    conversations     ShareGPT: the first turn with `from` "human" or "user" of a list of {from, value}
Any other file is plain text and one prompt; a folder is one prompt per *.txt file, by name.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ggml_moecache.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_JSON_SUFFIXES = (".json", ".jsonl")
_HUMANS = ("human", "user")


@dataclass(frozen=True)
class Prompt:
    """`place`: file and line where it begins, for messages."""

    text: str
    place: str


@dataclass(frozen=True)
class PromptSet:
    """`sha256`: of the file; of a folder, over what sha256sum prints of its *.txt files in order of names.

    `n_left_out`: conversations without a turn of a human, of which there is no prompt.
    """

    file: str
    sha256: str
    prompts: tuple[Prompt, ...]
    n_left_out: int = 0


class _LeftOut(Exception):  # noqa: N818 - no error: a record that holds no prompt by nature
    pass


def read_prompts(path: Path) -> PromptSet:
    """The prompts of a file or folder. Raises ConfigError with file, line and reason."""
    if path.is_dir():
        return _read_folder(path)
    data = _bytes_of(path)
    text = _decoded(path, data)
    digest = hashlib.sha256(data).hexdigest()
    if path.suffix not in _JSON_SUFFIXES:
        return PromptSet(path.name, digest, (_plain(path, text),))
    prompts, n_left_out = _from_records(path, _records(path, text))
    if not prompts:
        raise ConfigError(f"{path}: holds no prompt; it is empty, or no conversation has a turn of a human")
    return PromptSet(path.name, digest, tuple(prompts), n_left_out)


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None


def _decoded(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: is not UTF-8: {error.reason} at byte {error.start} of the file") from None


def _plain(path: Path, text: str) -> Prompt:
    if not text.strip():
        raise ConfigError(f"{path}: holds no prompt: the file is empty")
    return Prompt(text, str(path))


def _read_folder(folder: Path) -> PromptSet:
    files = sorted(folder.glob("*.txt"))
    if not files:
        raise ConfigError(f"{folder}: is a folder without *.txt files; name a prompt file, or a folder of text files")
    digest = hashlib.sha256()
    prompts = []
    for file in files:
        data = _bytes_of(file)
        digest.update(f"{hashlib.sha256(data).hexdigest()}  {file.name}\n".encode())
        prompts.append(_plain(file, _decoded(file, data)))
    return PromptSet(folder.resolve().name, digest.hexdigest(), tuple(prompts))


# --- records --------------------------------------------------------------------------------------------------------


def _records(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    """(line, record) of each record of a JSON array or of JSON Lines."""
    if text.lstrip()[:1] == "[":
        yield from _array(path, text)
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except json.JSONDecodeError as error:
                raise ConfigError(f"{path}:{number}: not JSON: {error.msg} at column {error.colno}") from None
            except RecursionError:
                raise ConfigError(f"{path}:{number}: not a prompt: brackets nested too deep") from None


def _array(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    """Element by element, so that each has the line it begins on."""
    decoder = json.JSONDecoder()
    at = _skip_space(text, text.index("[") + 1)
    line, counted = 1, 0
    while True:
        line, counted = line + text.count("\n", counted, at), at
        if text[at : at + 1] == "]":
            break
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{path}:{error.lineno}: not JSON: {error.msg} at column {error.colno}") from None
        except RecursionError:
            raise ConfigError(f"{path}:{line}: not a prompt: brackets nested too deep") from None
        yield line, value
        at = _skip_space(text, at)
        if text[at : at + 1] == ",":
            at = _skip_space(text, at + 1)
        elif text[at : at + 1] != "]":
            place = f"{path}:{text.count(chr(10), 0, at) + 1}"
            raise ConfigError(
                f"{place}: not JSON: the array is not closed, or a comma is missing; is the file cut off?"
            )
    if text[at + 1 :].strip():
        raise ConfigError(f"{path}:{line}: text stands behind the end of the JSON array")


def _skip_space(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\t", "\r", "\n"):
        at += 1
    return at


def _from_records(path: Path, records: Iterator[tuple[int, Any]]) -> tuple[list[Prompt], int]:
    prompts: list[Prompt] = []
    n_left_out = 0
    first: tuple[str, int] | None = None
    for line, record in records:
        place = f"{path}:{line}"
        form = _form_of(place, record)
        first = first or (form, line)
        if form != first[0]:
            raise ConfigError(f"{place}: is a {form} record, but line {first[1]} is a {first[0]} record")
        try:
            prompts.append(Prompt(_usable(place, _FORMS[form](place, record)), place))
        except _LeftOut:
            n_left_out += 1
    return prompts, n_left_out


def _form_of(place: str, record: object) -> str:
    if not isinstance(record, dict):
        raise ConfigError(f"{place}: a record must be a JSON object, got {_shown(record)}")
    if "prompt" in record:
        return "prompt"
    if "conversations" in record:
        return "ShareGPT"
    if "context" in record and "input" in record:
        return "LongBench"
    keys = ", ".join(record) or "none"
    raise ConfigError(
        f"{place}: must have the key prompt, conversations (ShareGPT), or context and input (LongBench); it has {keys}"
    )


def _usable(place: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{place}: holds half of a surrogate pair, which is no text") from None
    return text


def _text_at(place: str, record: dict[str, Any], key: str, *, may_be_empty: bool = False) -> str:
    value = record[key]
    if not isinstance(value, str):
        raise ConfigError(f"{place}: {key} must be a string, got {_shown(value)}")
    if not may_be_empty and not value.strip():
        raise ConfigError(f"{place}: {key} is empty")
    return value


def _prompt(place: str, record: dict[str, Any]) -> str:
    return _text_at(place, record, "prompt")


def _longbench(place: str, record: dict[str, Any]) -> str:
    context = _text_at(place, record, "context")
    question = _text_at(place, record, "input", may_be_empty=True)  # summaries have no question
    return f"{context}\n\n{question}" if question else context


def _sharegpt(place: str, record: dict[str, Any]) -> str:
    turns = record["conversations"]
    if not isinstance(turns, list):
        raise ConfigError(f"{place}: conversations must be a list, got {_shown(turns)}")
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn, dict) or not all(isinstance(turn.get(key), str) for key in ("from", "value")):
            raise ConfigError(f"{place}: turn {number} must have the strings from and value, got {_shown(turn)}")
        if turn["from"] in _HUMANS and turn["value"].strip():
            text: str = turn["value"]
            return text
    raise _LeftOut


_FORMS: dict[str, Callable[[str, dict[str, Any]], str]] = {
    "prompt": _prompt,
    "LongBench": _longbench,
    "ShareGPT": _sharegpt,
}


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - a line of a message
