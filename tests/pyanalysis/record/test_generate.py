"""The generation loop: what llama-cpp-python generates itself, and the same tokens each time."""

from __future__ import annotations

import contextlib
import ctypes
import importlib

import pytest

import ggml_moecache
from ggml_moecache.errors import ConfigError
from pyanalysis.record.generate import Generator, chunks
from pyanalysis.record.sampling import SamplerChain, Sampling
from pyanalysis.record.tokens import tokens_of

GREEDY = Sampling(temperature=0, repeat_penalty=1)
PROMPTS = ["SQLite is a library that", "The derivative of a", "import numpy as np\n"]


def run(prompts, *, n_parallel=1, n_predict=12, sampling=GREEDY, seed=1, n_ubatch=64, counts=None):
    n_ctx = 512
    llm = ggml_moecache.load_model(
        n_seq_max=n_parallel, n_ctx=n_ctx, n_batch=n_ubatch, n_ubatch=n_ubatch, n_threads=1, verbose=False
    )
    low_level = importlib.import_module("llama_cpp.llama_cpp")
    done: dict[int, list[int]] = {}
    seen = [] if counts is None else counts
    with contextlib.closing(llm), contextlib.closing(Generator(llm, low_level, n_parallel, n_ubatch)) as generator:
        generator.run(prompts, n_predict=n_predict, sampling=sampling, seed=seed, on_tokens=seen.append, done=done)
    return done


@pytest.fixture(scope="module")
def prompts():
    _, low_level = ggml_moecache.load_model(verbose=False), importlib.import_module("llama_cpp.llama_cpp")
    tokens, n_special = tokens_of(low_level, ggml_moecache.embedded_model(), PROMPTS)
    assert n_special == 0  # the embedded model's GGUF does not ask for a begin-of-text token
    return tokens


def test_tokens_are_those_of_llama(prompts):
    llm = ggml_moecache.load_model(verbose=False)
    assert prompts == [llm.tokenize(text.encode()) for text in PROMPTS]
    llm.close()


def test_what_reads_like_a_special_token_is_text():
    low_level = importlib.import_module("llama_cpp.llama_cpp")
    ((one,), _) = tokens_of(low_level, ggml_moecache.embedded_model(), ["<|im_end|>"])
    assert len(one) > 1


def test_greedy_text_is_that_of_llama_cpp_python(prompts):
    """Its own sampler at temperature 0, for each prompt in a context of its own."""
    expected = {}
    for index, prompt in enumerate(prompts):
        llm = ggml_moecache.load_model(n_ctx=512, n_batch=64, n_ubatch=64, n_threads=1, verbose=False)
        stream = llm.generate(prompt, temp=0.0, repeat_penalty=1.0)
        expected[index] = [next(stream) for _ in range(12)]
        llm.close()
    assert run(prompts) == expected


def test_every_token_is_counted(prompts):
    """Each prompt, and of 5 generated tokens the 4 that are computed: the last is not."""
    counts: list[int] = []
    run(prompts, n_predict=5, n_parallel=2, counts=counts)
    assert sum(counts) == sum(map(len, prompts)) + 3 * 4
    # Two at a time: two prompts, four steps of both; then the third prompt and its four steps.
    assert counts == [len(prompts[0]), len(prompts[1]), 2, 2, 2, 2, len(prompts[2]), 1, 1, 1, 1]


def test_the_seed_decides_and_nothing_else(prompts):
    sampled = Sampling()
    first = run(prompts, sampling=sampled, seed=3)
    assert run(prompts, sampling=sampled, seed=3) == first
    assert run(prompts, sampling=sampled, seed=4) != first
    # Request i is sampled with seed + i: alone and first it is the same with that seed.
    assert run(prompts[2:], sampling=sampled, seed=5)[0] == first[2]


def test_one_token_each(prompts):
    assert {i: len(tokens) for i, tokens in run(prompts, n_predict=1).items()} == {0: 1, 1: 1, 2: 1}


def test_end_of_text_is_never_chosen():
    """<|endoftext|> (0) and <|im_end|> (2) have the highest logits; the likeliest of the others is taken."""
    llm = ggml_moecache.load_model(verbose=False)
    low_level = importlib.import_module("llama_cpp.llama_cpp")
    vocab = low_level.llama_model_get_vocab(llm._model.model)
    n_vocab = low_level.llama_vocab_n_tokens(vocab)
    logits = {0: 100.0, 2: 90.0, 77: 5.0}
    rows = (low_level.llama_token_data * n_vocab)(*((token, logits.get(token, 0.0), 0.0) for token in range(n_vocab)))
    candidates = low_level.llama_token_data_array(rows, n_vocab, -1, False)
    chain = SamplerChain(low_level, vocab, GREEDY, 1, [])
    low_level.llama_sampler_apply(chain._chain, ctypes.byref(candidates))
    assert candidates.data[candidates.selected].id == 77
    chain.close()
    llm.close()


def test_repetition_penalty_sees_the_prompt(prompts):
    """A penalty that divides by a million leaves no token of the last 256 a chance, those of the prompt included."""
    found = run(prompts[:1], n_predict=40, sampling=Sampling(temperature=0, repeat_penalty=1e6))
    assert len(set(found[0]) | set(prompts[0])) == 40 + len(set(prompts[0]))


@pytest.mark.parametrize(
    ("n", "most", "sizes"),
    [(5, 8, [5]), (9, 8, [4, 5]), (16, 8, [8, 8]), (17, 8, [5, 6, 6]), (3, 2, [1, 2]), (1, 2, [1])],
)
def test_chunks(n, most, sizes):
    parts = chunks(range(n), most)
    assert [len(part) for part in parts] == sizes
    assert [token for part in parts for token in part] == list(range(n))


@pytest.mark.parametrize("n", range(2, 40))
@pytest.mark.parametrize("most", [2, 3, 7])
def test_no_later_chunk_has_one_token(n, most):
    assert all(2 <= len(part) <= most for part in chunks(range(n), most)[1:])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -0.1}, "--temperature must be at least 0. Got -0.1 instead."),
        ({"temperature": float("nan")}, "--temperature must be at least 0. Got nan instead."),
        ({"repeat_penalty": 0}, "--repeat-penalty must be above 0 (1: off). Got 0 instead."),
        ({"repeat_last_n": -1}, "--repeat-last-n must be at least 0 tokens (0: off). Got -1 instead."),
        ({"top_k": -1}, "--top-k must be at least 0 (0: off). Got -1 instead."),
        ({"top_p": 0}, "--top-p must be above 0 and at most 1 (1: off). Got 0 instead."),
        ({"min_p": 1}, "--min-p must be at least 0 and below 1 (0: off). Got 1 instead."),
    ],
)
def test_sampling_out_of_range(values, message):
    with pytest.raises(ConfigError) as caught:
        Sampling(**values)
    assert str(caught.value) == message


def test_top_k_1_is_greedy(prompts):
    expected = run(prompts[:1])
    for one in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 0.999999}):
        assert run(prompts[:1], sampling=Sampling(repeat_penalty=1, **one)) == expected
