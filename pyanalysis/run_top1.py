"""`moecache run --top1-every`: text through llama-cpp-python, whose eval callback shows the hidden states."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import ggml_moecache
from ggml_moecache.errors import BackendError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

_N_CTX_TOKENS = 4096


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(
            f"{message}. A stock program has no eval callback, so with --top1-every the text is made by "
            "llama-cpp-python, and of llama.cpp's options there are -p, -f, -n, -c, -b, -ub, -t, -s, --temp, --top-k, "
            "--top-p and --min-p."
        )


def parse(options: Sequence[str]) -> argparse.Namespace:
    """llama.cpp's options, those that can be had here, with llama-completion's defaults. Raises ConfigError."""
    parser = _Parser(prog="moecache run", add_help=False, allow_abbrev=False)
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("-p", "--prompt")
    prompt.add_argument("-f", "--file", type=Path)
    parser.add_argument("-n", "--predict", "--n-predict", type=int, default=-1)
    parser.add_argument("-c", "--ctx-size", type=int, default=_N_CTX_TOKENS)
    parser.add_argument("-b", "--batch-size", type=int, default=2048)
    parser.add_argument("-ub", "--ubatch-size", type=int, default=512)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("-s", "--seed", type=int)
    parser.add_argument("--temp", "--temperature", type=float, default=0.8)
    parser.add_argument("--top-k", type=int, default=40)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--min-p", type=float, default=0.05)
    given = parser.parse_args(_joined(parser, options))
    if given.predict < -1 or given.predict == 0:
        raise ConfigError(f"-n must be a number of tokens, or -1 for no limit. Got {given.predict} instead.")
    return given


def _joined(parser: _Parser, options: Sequence[str]) -> list[str]:
    """Each option with its value in one word: argparse would take -fa for -f with the value "a"."""
    known = set(parser._option_string_actions)  # noqa: SLF001 - has no public name
    words = []
    rest = iter(options)
    for option in rest:
        name, equals, _ = option.partition("=")
        if name not in known:
            parser.error(f"{option} cannot be used")
        value = None if equals else next(rest, None)
        if not equals and value is None:
            parser.error(f"{option} needs a value")
        words.append(option if equals else f"{option}={value}")
    return words


def run(model: Path | None, cache: dict[str, Any], log: Path, every: int, options: Sequence[str]) -> int:
    """Generate, logging top1_token on every N-th token to `log`. Exit status. Raises MoeCacheError.

    `cache`: arguments of load_model for the cache.
    """
    given = parse(options)
    prompt = given.prompt if given.file is None else _text_of(given.file)
    llm = ggml_moecache.load_model(
        model,
        log=log,
        log_top1_every=every,
        verbose=False,
        n_ctx=given.ctx_size,
        n_batch=given.batch_size,
        n_ubatch=given.ubatch_size,
        n_threads=given.threads,
        n_threads_batch=given.threads,
        **cache,
        **({} if given.seed is None else {"seed": given.seed}),
    )
    print(f"moecache: top1_token is recorded for one token in {every}: this run gives no timings", file=sys.stderr)
    with contextlib.closing(llm):
        n_prompt = len(llm.tokenize(prompt.encode(), special=True))
        n_ctx = min(llm.n_ctx(), given.ctx_size or llm.n_ctx())  # llama.cpp rounds small contexts up
        if n_prompt >= n_ctx:
            raise ConfigError(f"the prompt has {n_prompt} tokens, more than -c {n_ctx} leaves room for; raise -c")
        print(prompt, end="", flush=True)
        try:
            for part in llm.create_completion(
                prompt,
                max_tokens=given.predict,
                temperature=given.temp,
                top_k=given.top_k,
                top_p=given.top_p,
                min_p=given.min_p,
                stream=True,
            ):
                print(part["choices"][0]["text"], end="", flush=True)
        except ValueError as error:
            raise ConfigError(f"llama-cpp-python refuses: {error}") from error
        except RuntimeError as error:  # a decode that failed: MOECACHE_REQUIRE=1
            raise BackendError(f"{error}{_reason()}") from None
    print()
    return 0


def _reason() -> str:
    """What the plugin says of the context that gave up."""
    for context in ggml_moecache.status()["contexts"]:
        if context["state"] == "inactive":
            return f": {context['reason']}: {context['detail']}"
    return ""


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as a prompt: {error}") from None
