"""Estimators against closed forms, hand-made cases and processes whose values are known."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pyanalysis.studies.estimators.concentration import entropy_bits, experts_to_cover, jensen_shannon_bits
from pyanalysis.studies.estimators.information import conditional_information, mutual_information
from pyanalysis.studies.estimators.log_loss import log_loss
from pyanalysis.studies.estimators.recall import found_in_best
from pyanalysis.studies.estimators.repetition import gaps, run_lengths, spearman, uses_ahead
from pyanalysis.studies.estimators.transition import conditional, pair_counts

samples = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40)


def test_entropy_of_known_distributions():
    assert entropy_bits(np.full(8, 5)) == pytest.approx(3)
    assert entropy_bits(np.array([2, 1, 1, 0])) == pytest.approx(1.5)
    assert entropy_bits(np.array([7])) == 0


def test_the_correction_of_miller_and_madow():
    # 3 cells that occur, 4 draws: (3 - 1) / (2 * 4) nats more
    assert entropy_bits(np.array([2, 1, 1, 0]), corrected=True) == pytest.approx(1.5 + 2 / 8 / np.log(2))


def test_fewest_experts_that_cover():
    counts = np.array([1, 50, 29, 10, 10])
    assert experts_to_cover(counts, (0.5, 0.79, 0.8, 0.9, 1.0)) == [1, 2, 3, 4, 5]
    assert experts_to_cover(np.array([0, 3]), (0.0, 0.5)) == [1, 1]


def test_divergence():
    assert jensen_shannon_bits(np.array([1, 1, 0]), np.array([2, 2, 0])) == pytest.approx(0)
    assert jensen_shannon_bits(np.array([1, 0]), np.array([0, 9])) == pytest.approx(1)
    # (1, 0) against (1/2, 1/2): the mean is (3/4, 1/4)
    expected = (0.75 * np.log2(4 / 3) + 0.25 * 2) - 0.5
    assert jensen_shannon_bits(np.array([4, 0]), np.array([1, 1])) == pytest.approx(expected)


def test_information_of_a_binary_symmetric_channel():
    generator = np.random.default_rng(0)
    x = generator.integers(0, 2, 100_000)
    y = x ^ (generator.random(100_000) < 0.1)
    capacity = 1 + 0.1 * np.log2(0.1) + 0.9 * np.log2(0.9)
    found = mutual_information(x, y, generator)
    assert found.plug_in == pytest.approx(capacity, abs=0.01)
    assert found.miller_madow == pytest.approx(capacity, abs=0.01)
    assert found.shuffled < 0.001
    assert found.n == 100_000


def test_bias_of_independent_variables_is_what_the_control_finds():
    generator = np.random.default_rng(1)
    x, y = generator.integers(0, 30, (2, 30_000))
    found = mutual_information(x, y, generator)
    # (30 - 1)^2 / 2n nats are expected of the plug-in estimate
    assert found.plug_in == pytest.approx(29**2 / 60_000 / np.log(2), rel=0.15)  # its standard error is 5 %
    assert abs(found.above_control) < 0.005
    assert abs(found.miller_madow) < 0.005


def test_conditional_information_of_exclusive_or_and_of_a_common_cause():
    generator = np.random.default_rng(2)
    x, z = generator.integers(0, 2, (2, 20_000))
    assert mutual_information(x, x ^ z, generator).plug_in < 0.001
    given_z = conditional_information(x, x ^ z, z, generator)
    assert given_z.plug_in == pytest.approx(1, abs=0.001)
    assert given_z.shuffled < 0.001
    cause = generator.integers(0, 4, 20_000)
    one, other = (np.where(generator.random(20_000) < 0.7, cause, 0) for _ in range(2))
    assert mutual_information(one, other, generator).plug_in > 0.3
    assert conditional_information(one, other, cause, generator).above_control < 0.002


@given(samples)
def test_information_is_symmetric_and_bounded(pairs):
    x, y = np.array(pairs).T
    one = mutual_information(x, y, np.random.default_rng(0)).plug_in
    other = mutual_information(y, x, np.random.default_rng(0)).plug_in
    least = min(entropy_bits(np.bincount(x)), entropy_bits(np.bincount(y)))
    assert one == pytest.approx(other, abs=1e-9)
    assert -1e-9 <= one <= least + 1e-9


def test_runs_gaps_and_uses_ahead_by_hand():
    # one request of 5 tokens, one of 2; expert 0 in tokens 0, 1, 3, 5, 6, expert 1 in 2, 4
    hot = np.array([[1, 0], [1, 0], [0, 1], [1, 0], [0, 1], [1, 0], [1, 0]], dtype=bool)
    begins = np.array([1, 0, 0, 0, 0, 1, 0], dtype=bool)
    assert sorted(run_lengths(hot, begins)) == [1, 1, 1, 2, 2]
    assert sorted(gaps(hot, begins)) == [1, 1, 2, 2]
    ahead, whole = uses_ahead(hot, begins, 2)
    assert whole.tolist() == [True, True, True, False, False, False, False]
    assert ahead[:3].tolist() == [[1, 1], [1, 1], [1, 1]]


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_runs_and_gaps_against_counting(rows):
    hot = np.array([[used] for used, _ in rows])
    begins = np.array([i == 0 or begin for i, (_, begin) in enumerate(rows)])
    runs, distances, length, last = [], [], 0, None
    for used, begin in zip(hot[:, 0], begins, strict=True):
        if begin or not used:
            runs += [length] * (length > 0)
            length = 0
        last = None if begin else last
        if last is not None:
            last += 1
        if used:
            length += 1
            distances += [last] * (last is not None)
            last = 0
    runs += [length] * (length > 0)
    assert sorted(run_lengths(hot, begins)) == sorted(runs)
    assert sorted(gaps(hot, begins)) == sorted(distances)


def test_rank_correlation_is_scipys():
    generator = np.random.default_rng(3)
    x = generator.integers(0, 6, 200)
    y = x + generator.integers(0, 5, 200)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)
    assert np.isnan(spearman(np.zeros(4), np.arange(4)))


def test_pairs_against_counting():
    generator = np.random.default_rng(4)
    one, other = (np.array([generator.permutation(5)[:2] for _ in range(60)]) for _ in range(2))
    one[7] = -1
    expected = np.zeros((5, 5))
    for a, b in zip(one.tolist(), other.tolist(), strict=True):
        for i, j in itertools.product(a, b):
            expected[i, j] += i >= 0 and j >= 0
    assert (pair_counts(one, other, 5) == expected).all()


def test_a_chain_with_a_known_matrix():
    matrix = np.array([[0.8, 0.2, 0.0], [0.1, 0.6, 0.3], [0.5, 0.0, 0.5]])
    generator = np.random.default_rng(5)
    chain = [0]
    for draw in generator.random(60_000):
        chain.append(int(np.searchsorted(np.cumsum(matrix[chain[-1]]), draw)))
    states = np.array(chain)[:, None]
    uses = np.bincount(states[:-1, 0], minlength=3)
    found = conditional(pair_counts(states[:-1], states[1:], 3), uses)
    assert np.abs(found - matrix).max() < 0.015
    # its information rate: entropy of the stationary distribution less that of a step
    values, vectors = np.linalg.eig(matrix.T)
    stationary = np.real(vectors[:, np.argmax(np.real(values))])
    stationary /= stationary.sum()
    step = sum(p * entropy_bits(1e6 * row) for p, row in zip(stationary, matrix, strict=True))
    information = mutual_information(states[:-1, 0], states[1:, 0], generator)
    assert information.plug_in == pytest.approx(entropy_bits(1e6 * stationary) - step, abs=0.01)


def test_an_expert_without_uses_says_nothing():
    assert conditional(np.zeros((2, 2)), np.array([0, 0])).tolist() == [[0, 0], [0, 0]]


def test_recall_against_sorting():
    generator = np.random.default_rng(6)
    scores = generator.integers(0, 4, (40, 3, 9)).astype(np.float32)  # many ties
    ids = np.array([[generator.permutation(9)[:3] for _ in range(3)] for _ in range(40)])
    ids[5, 1, 2] = -1
    found, asked = found_in_best(scores, ids, (3, 6))
    expected = np.zeros((2, 3), dtype=int)
    for t, layer in itertools.product(range(40), range(3)):
        best = sorted(range(9), key=lambda e, s=scores[t, layer]: (-s[e], e))
        for i, n in enumerate((3, 6)):
            expected[i, layer] += len(set(best[:n]) & set(ids[t, layer].tolist()))
    assert (found == expected).all()
    assert asked.tolist() == [120, 119, 120]


def test_log_loss_by_hand():
    # popularity of 2 experts from 3 uses: (2 + 1) / 5 and (1 + 1) / 5
    own, test = np.array([0, 0, 1]), np.array([0, 1])
    assert log_loss([], own, [], test, 2) == pytest.approx([-np.log2(3 / 5), -np.log2(2 / 5)])
    # context 7 was seen twice, with one kind of expert (0): (2 + 3/5) / 3 for 0, (0 + 2/5) / 3 for 1; context 8 never
    context = np.array([7, 7, 5])
    found = log_loss([context], own, [np.array([7, 7, 8])], np.array([0, 1, 1]), 2)
    assert found == pytest.approx([-np.log2(2.6 / 3), -np.log2(0.4 / 3), -np.log2(2 / 5)])


def test_log_loss_is_that_of_a_distribution():
    generator = np.random.default_rng(7)
    contexts = [generator.integers(-1, 40_000, 50), generator.integers(-1, 3, 50)]
    own = generator.integers(0, 5, 50)
    asked = [np.repeat(c[:4], 5) for c in contexts]
    chance = 2 ** -log_loss(contexts, own, asked, np.tile(np.arange(5), 4), 5)
    assert chance.reshape(4, 5).sum(axis=1) == pytest.approx(np.ones(4))
