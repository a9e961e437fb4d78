"""Token ids of prompts, by the vocabulary alone: the size of the context depends on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ggml_moecache.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Vocabulary:
    """The vocabulary of a GGUF; `close` it. REQUIRES: llama.cpp's backends are loaded.

    Text is text: what reads like a special token is not taken for one. `n_special` tokens (0, or 1 for models that want
    a begin-of-text token) come before each prompt.
    """

    def __init__(self, low_level: Any, path: Path) -> None:  # noqa: ANN401 - the module llama_cpp.llama_cpp
        self._llama = low_level
        params = low_level.llama_model_default_params()
        params.vocab_only = True
        params.n_gpu_layers = 0
        self._model = low_level.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise BackendError(f"llama.cpp could not load the vocabulary of {path}")
        self._vocab = low_level.llama_model_get_vocab(self._model)
        self.n_special = int(low_level.llama_vocab_get_add_bos(self._vocab))

    def tokens(self, text: str) -> list[int]:
        """Raises BackendError if llama.cpp cannot tokenize `text`."""
        data = text.encode()
        n_room = len(data) + 8  # a token has at least one byte, but for the special ones around the text
        ids = (self._llama.llama_token * n_room)()
        n = self._llama.llama_tokenize(self._vocab, data, len(data), ids, n_room, True, False)
        if n < 0:
            raise BackendError(f"llama.cpp could not tokenize a text of {len(data)} bytes")
        return [int(token) for token in ids[:n]]

    def close(self) -> None:
        self._llama.llama_model_free(self._model)


def tokens_of(low_level: Any, path: Path, texts: Sequence[str]) -> tuple[list[list[int]], int]:  # noqa: ANN401
    """(token ids of each text, number of special tokens before each). Raises BackendError."""
    vocabulary = Vocabulary(low_level, path)
    try:
        return [vocabulary.tokens(text) for text in texts], vocabulary.n_special
    finally:
        vocabulary.close()
