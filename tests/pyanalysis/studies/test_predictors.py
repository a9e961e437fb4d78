"""Predictors on traces of known processes: they reach Bayes recall, and look at nothing that is not there yet."""

from dataclasses import replace

import numpy as np
import pytest

from pyanalysis.studies.estimators.recall import found_in_best
from pyanalysis.studies.predictors.activation_match import ActivationMatch
from pyanalysis.studies.predictors.next_use import FARTHEST, NextUse, gaps_ahead
from pyanalysis.studies.predictors.perceptron import Perceptron
from pyanalysis.studies.predictors.reservoir import Reservoir, ridge_by_features, ridge_by_pairs
from pyanalysis.studies.predictors.sequence import shuffled
from pyanalysis.studies.predictors.state_space import HALF_LIVES, StateSpace
from pyanalysis.studies.predictors.table import PREDICTORS
from tests.pyanalysis.studies.processes import layer_chain, routing_of, token_chain

N = 6000
HALF = np.arange(N // 2), np.arange(N // 2, N)


def recall(predictor, routing, tokens, *, first_layer=0, size=1) -> float:
    found, asked = found_in_best(predictor.scores(routing, tokens), routing.ids[tokens], (size,))
    return float(found[0, first_layer:].sum() / asked[first_layer:].sum())


@pytest.mark.parametrize("name", ["inter-layer", "combined", "logistic"])
def test_bayes_recall_between_layers(name):
    routing = routing_of(layer_chain(N, 4, 8, 0.7), 8)
    predictor = PREDICTORS[name](0)
    predictor.fit(routing, HALF[0])
    # layers behind the first: 0.7 + 0.3 / 8; three standard errors of 9,000 draws are 0.014
    assert recall(predictor, routing, HALF[1], first_layer=1) == pytest.approx(0.7 + 0.3 / 8, abs=0.015)
    # the first layer, uniform: an eighth
    first = found_in_best(predictor.scores(routing, HALF[1]), routing.ids[HALF[1]], (1,))[0][0, 0] / len(HALF[1])
    assert first == pytest.approx(1 / 8, abs=0.025)


@pytest.mark.parametrize("name", ["cross-token", "combined", "logistic", "reservoir", "state-space"])
def test_bayes_recall_between_tokens(name):
    routing = routing_of(token_chain(N, 3, 8, 0.7), 8)
    predictor = PREDICTORS[name](0)
    predictor.fit(routing, HALF[0])
    assert recall(predictor, routing, HALF[1]) == pytest.approx(0.7 + 0.3 / 8, abs=0.025)


@pytest.mark.parametrize("name", ["popularity", "reservoir-shuffled", "state-space-shuffled"])
def test_what_knows_no_order_reaches_popularity(name):
    routing = routing_of(token_chain(N, 3, 8, 0.7), 8)
    predictor = PREDICTORS[name](0)
    predictor.fit(routing, HALF[0])
    assert recall(predictor, routing, HALF[1]) == pytest.approx(1 / 8, abs=0.03)


def test_a_perceptron_learns_what_no_line_separates():
    """The exclusive or of two signs, and of which the second output knows nothing but the base: one time in ten."""
    generator = np.random.default_rng(0)
    x = generator.choice([-1.0, 1.0], (2000, 2))
    y = np.stack([(x[:, 0] * x[:, 1] < 0).astype(float), np.full(2000, 0.5)], axis=1)
    counted = np.array([[1.0, 0.0]])
    model = Perceptron(2, 32, np.array([0.0, np.log(0.1 / 0.9)]), generator)
    assert model.probabilities(x[:1])[0].tolist() == pytest.approx([0.5, 0.1])

    def samples(places):
        return x[places], y[places], np.repeat(counted, len(places), axis=0)

    model.train(samples, 2000, n_held=200, rounds=40, rate=1e-2, generator=generator)
    found = model.probabilities(x)
    assert np.abs(found[:, 0] - y[:, 0]).max() < 0.05
    assert np.allclose(found[:, 1], 0.1)


def test_the_states_are_running_means():
    """One layer, expert 1 once: the state behind the j-th token after it is (1 - a) a^j of its projection."""
    ids = np.zeros((40, 1, 1), dtype=int)
    ids[10] = 1
    routing = routing_of(ids, 4)
    model = StateSpace(n_channels=3)
    model.fit(routing, np.arange(40))
    driven = model._input(routing, np.array([0, 10])) @ model._into
    states = model._state_of(routing).reshape(40, len(HALF_LIVES), 3)
    for place, half_life in enumerate(HALF_LIVES):
        a = 0.5 ** (1 / half_life)
        for token in (0, 9, 10, 30):
            expected = (1 - a) * sum(a ** (token - t) * driven[int(t == 10)] for t in range(token + 1))
            assert np.allclose(states[token, place], expected, atol=1e-5)


@pytest.mark.parametrize("n", [5, 40])
def test_ridge_regression_by_features_and_by_pairs(n):
    generator = np.random.default_rng(9)
    x = np.column_stack([generator.standard_normal((n, 7)), np.ones(n)])
    y = generator.standard_normal((n, 2)) + 3
    both = ridge_by_features(x.T @ x, x.T @ y, 0.5), ridge_by_pairs(x, y, 0.5)
    assert np.allclose(*both, atol=1e-4)
    # the constant is free: the slope of the penalized squares is 0 by each weight
    slope = x.T @ (x @ both[1] - y) + np.array([*[0.5] * 7, 0])[:, None] * both[1]
    assert np.abs(slope).max() < 1e-4


def test_the_gradient_against_finite_differences():
    generator = np.random.default_rng(5)
    model = Perceptron(4, 5, generator.standard_normal(3), generator)
    model.parameters = [generator.standard_normal(p.shape) for p in model.parameters]
    x, y = generator.standard_normal((6, 4)), generator.integers(0, 2, (6, 3)).astype(float)
    counted = generator.integers(0, 2, (6, 3)).astype(float)
    loss, slopes = model.loss_and_gradients(x, y, counted)
    p = model.probabilities(x)
    assert loss == pytest.approx(-(counted * (y * np.log(p) + (1 - y) * np.log(1 - p))).sum() / 6)
    for values, slope in zip(model.parameters, slopes, strict=True):
        for at in np.ndindex(values.shape):
            kept = values[at]
            around = []
            for step in (1e-5, -1e-5):
                values[at] = kept + step
                around.append(model.loss_and_gradients(x, y, counted)[0])
            values[at] = kept
            assert (around[0] - around[1]) / 2e-5 == pytest.approx(slope[at], abs=1e-7)


def test_training_keeps_the_weights_of_the_least_held_out_loss():
    """Noise: what is learnt makes the held-out loss rise, so training ends early; with none held out it goes on."""
    generator = np.random.default_rng(6)
    x, y = generator.standard_normal((400, 30)), generator.integers(0, 2, (400, 2)).astype(float)

    def samples(places):
        return x[places], y[places], np.ones((len(places), 2))

    found = []
    for n_held, rounds in ((200, 0), (200, 20), (0, 1), (0, 2)):
        model = Perceptron(30, 64, np.zeros(2), np.random.default_rng(7))
        generator = np.random.default_rng(8)
        model.train(samples, 400, n_held=n_held, rounds=rounds, rate=2e-3, generator=generator)
        found.append(model.parameters[0])
    assert (found[0] == found[1]).all()  # the first ones
    assert not np.allclose(found[2], found[3])


def test_shuffling_moves_the_tokens_that_are_fitted_on_only():
    routing = routing_of(np.arange(100)[:, None, None], 100)
    mixed = shuffled(routing, np.arange(60), np.random.default_rng(0)).ids[:, 0, 0]
    assert mixed[60:].tolist() == list(range(60, 100))
    assert sorted(mixed[:60]) == list(range(60))
    assert (mixed[:60] != np.arange(60)).sum() > 50


def test_last_token_finds_what_stays():
    generator = np.random.default_rng(0)
    ids = [generator.permutation(6)[:2]]
    for _ in range(999):
        ids.append(ids[-1] if generator.random() < 0.8 else generator.permutation(6)[:2])
    routing = routing_of(np.array(ids)[:, None], 6)
    predictor = PREDICTORS["last-token"](0)
    predictor.fit(routing, np.arange(500))
    # 0.8, and of another pair of 6 a third on average
    assert recall(predictor, routing, np.arange(500, 1000), size=2) == pytest.approx(0.8 + 0.2 / 3, abs=0.04)


@pytest.mark.parametrize("name", ["cross-token", "reservoir", "state-space"])
def test_several_steps_ahead(name):
    routing = routing_of(token_chain(N, 2, 8, 0.8), 8)
    predictor = PREDICTORS[name](0)
    predictor.fit(routing, HALF[0])
    sources = HALF[1][:-4]
    for step, scores in enumerate(predictor.forecast(routing, sources, 4), 1):
        found, asked = found_in_best(scores, routing.ids[sources + step], (1,))
        # the chain was not broken in `step` tokens, or it was and the guess is right by chance
        expected = 0.8**step + (1 - 0.8**step) / 8
        assert float(found.sum() / asked.sum()) == pytest.approx(expected, abs=0.03)


def test_a_request_is_known_by_its_beginning():
    # requests of two kinds that use disjoint halves of 8 experts, uniformly
    generator = np.random.default_rng(1)
    kind = np.repeat(generator.integers(0, 2, 40), 25)
    ids = 4 * kind[:, None, None] + generator.integers(0, 4, (1000, 3, 1))
    routing = routing_of(ids, 8, request=np.repeat(np.arange(40), 25))
    predictor = ActivationMatch(nearest=4)
    tokens = np.arange(500, 1000)
    predictor.fit(routing, np.arange(500))
    known = tokens[routing.place[tokens] > 0]
    assert recall(predictor, routing, known, size=4) == 1
    begins = tokens[routing.place[tokens] == 0]
    assert recall(predictor, routing, begins, size=4) < 0.8


def test_the_collection_is_bounded():
    ids = np.arange(60)[:, None, None] % 5
    routing = routing_of(ids, 5, request=np.arange(60) // 2)
    few = ActivationMatch(bound=7)
    few.fit(routing, np.arange(60))
    assert few._rates.shape == (7, 5)


@pytest.mark.parametrize("name", PREDICTORS)
def test_nothing_is_seen_before_it_has_happened(name):
    """Another future, from (token, layer) on, changes no prediction for it nor for anything before."""
    generator = np.random.default_rng(2)
    ids = np.array([[generator.permutation(7)[:2] for _ in range(4)] for _ in range(300)])
    request = np.repeat(np.arange(6), 50)
    routing = routing_of(ids, 7, request=request)
    predictor = PREDICTORS[name](0)
    predictor.fit(routing, np.arange(150))
    token, layer = 222, 2
    other = ids.copy()
    other[token, layer:] = (other[token, layer:] + 1) % 7
    other[token + 1 :] = (other[token + 1 :] + 3) % 7
    changed = replace(routing, ids=other.astype(np.int16))
    tokens = np.arange(150, token + 1)
    one, two = predictor.scores(routing, tokens), predictor.scores(changed, tokens)
    assert np.allclose(one[:-1], two[:-1], atol=1e-6)
    assert np.allclose(one[-1, : layer + 1], two[-1, : layer + 1], atol=1e-6)
    if hasattr(predictor, "forecast"):
        pairs = zip(
            predictor.forecast(routing, tokens[:-1], 3), predictor.forecast(changed, tokens[:-1], 3), strict=True
        )
        assert all(np.allclose(a, b, atol=1e-6) for a, b in pairs)


@pytest.mark.parametrize("name", PREDICTORS)
def test_scores_are_probabilities_that_do_not_depend_on_the_chunk(name):
    generator = np.random.default_rng(3)
    ids = np.array([[generator.permutation(6)[:2] for _ in range(3)] for _ in range(120)])
    routing = routing_of(ids, 6, request=np.arange(120) // 30)
    predictor = PREDICTORS[name](0)
    predictor.fit(routing, np.arange(60))
    tokens = np.arange(120)
    scores = predictor.scores(routing, tokens)
    assert scores.shape == (120, 3, 6)
    assert scores.min() >= 0
    assert scores.max() <= 1 + 1e-5
    parts = np.concatenate([predictor.scores(routing, tokens[:47]), predictor.scores(routing, tokens[47:])])
    assert np.allclose(scores, parts, atol=1e-5)
    assert predictor.n_bytes() > 0


def test_a_trace_of_single_tokens_has_no_pairs_to_learn_from():
    routing = routing_of(np.arange(12)[:, None, None] % 4, 4, request=np.arange(12))
    for predictor in (Reservoir(), Reservoir(order_lost=True), StateSpace(), PREDICTORS["logistic"](0)):
        predictor.fit(routing, np.arange(6))
        assert np.isfinite(predictor.scores(routing, np.arange(12))).all()


def test_gaps_ahead_against_counting():
    generator = np.random.default_rng(4)
    hot = generator.random((60, 3)) < 0.1
    found = gaps_ahead(hot)
    for token in range(60):
        for expert in range(3):
            later = [t for t in range(token + 1, 60) if hot[t, expert]]
            assert found[token, expert] == (min(later[0] - token, FARTHEST) if later else FARTHEST)


def test_the_next_use_of_a_cycle():
    # expert 0 every 4 tokens, the others one after the other: 16 tokens a round
    ids = np.array([[0 if t % 4 == 0 else 1 + (t - t // 4 - 1) % 12] for t in range(1600)])[:, None]
    routing = routing_of(ids, 13)
    model = NextUse(samples=8_000)
    model.fit(routing, np.arange(800))
    gaps = 2 ** model.gaps(routing)[1200:1500, 0] - 1
    true = gaps_ahead(routing.multi_hot(slice(0, 1600), bool)[:, 0])[1200:1500]
    assert np.abs(np.log2((1 + gaps) / (1 + true))).mean() < 0.35
