"""The strategies by name. A new one is a function that makes a Plan and a line here (or a `prefetch:...` of old parts).

`parse` also takes free combinations: prefetch:predictor=P:when=W:order=O:ranking=R and retention:predictor=P.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ggml_moecache.errors import ConfigError
from pyanalysis.studies.strategy import placement, ranking
from pyanalysis.studies.strategy.base import Plan, Strategy
from pyanalysis.studies.strategy.prefetching import WHEN, forecast_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyanalysis.studies.strategy.base import Context

    Make = Callable[[Context, tuple[int, ...]], Plan]

SURE = (0.0, 0.2, 0.4, 0.6, 0.8, 0.95)  # least confidences to choose from on the selection part; 0 is as published
THRIFTY = (0.5, 0.75, 1.0, 1.5, math.inf)  # of the confidence at which a copy is expected to pay for itself
ORDERS = ("arrival", "deadline", "distance", "gain", "scheduling")
RANKINGS = ("lru", "cumulative-lfu", "decayed-lfu")
NODE_BYTES = (
    40 * 5 * 16
)  # next-use, per expert: 40 trees of 31 leaves, some 5 nodes of 16 bytes from the root to a leaf


def _prefetch(predictor: str, when: str, order: str, base: str = "decayed-lfu") -> Make:
    def make(context: Context, slots: tuple[int, ...]) -> Plan:
        del slots
        forecast = forecast_of(context, predictor, when)
        return Plan(base, order=order, forecast=forecast, predict_bytes=context.predict_bytes(predictor))

    return make


def _retention(predictor: str) -> Make:
    def make(context: Context, slots: tuple[int, ...]) -> Plan:
        del slots
        spent = context.predict_bytes(predictor, ranking.STEPS)
        return Plan("scores", scores=ranking.retention(context, predictor), predict_bytes=spent)

    return make


def _seqmoe(predictor: str) -> Make:
    # Tasks due at the next position are dropped, as published: least_lead 2.
    return lambda context, _: Plan(
        "scores",
        order="scheduling",
        least_lead=2,
        scores=ranking.retention(context, predictor),
        forecast=forecast_of(context, predictor, "token"),
        predict_bytes=context.predict_bytes(predictor, ranking.STEPS),
    )


def _thrifty(predictor: str) -> Make:
    def make(context: Context, slots: tuple[int, ...]) -> Plan:
        from pyanalysis.studies.strategy.calibration import calibration_of  # noqa: PLC0415 - needs scikit-learn

        del slots
        forecast = forecast_of(context, predictor, "layer")
        if len(forecast.confidence) > 0:  # a model of one MoE layer has no layer before another
            fitted = calibration_of(predictor, context.fit_on, context.fit, context.seed)
            calibrated = fitted.predict(forecast.confidence)
            forecast = replace(forecast, confidence=np.ascontiguousarray(calibrated, dtype=np.float32))
        return Plan(order="gain", forecast=forecast, predict_bytes=context.predict_bytes(predictor))

    return make


def _hybrimoe(context: Context, slots: tuple[int, ...]) -> Plan:
    del slots
    forecast = forecast_of(context, "logistic", "layer")
    scores = ranking.router_weights(context)
    spent = context.predict_bytes("logistic")
    return Plan("scores", order="gain", scores=scores, forecast=forecast, predict_bytes=spent)


def _first(predictor: str) -> Make:
    def make(context: Context, slots: tuple[int, ...]) -> Plan:
        del slots
        spent = context.predict_bytes(predictor, ranking.STEPS)
        return Plan("scores", scores=ranking.first_predicted(context, predictor), predict_bytes=spent)

    return make


def _next_use(context: Context, slots: tuple[int, ...]) -> Plan:
    del slots
    spent = NODE_BYTES * len(context.routing.layers) * context.routing.most_experts
    return Plan("scores", scores=ranking.next_use(context), predict_bytes=spent)


STRATEGIES: tuple[Strategy, ...] = (
    Strategy(
        "inter-layer-prefetch",
        "first-order inter-layer transitions, by deadline",
        _prefetch("inter-layer", "layer", "deadline"),
        SURE,
    ),
    Strategy(
        "cross-token-prefetch",
        "first-order cross-token transitions, by deadline",
        _prefetch("cross-token", "same-layer", "deadline"),
        SURE,
    ),
    Strategy(
        "moe-infinity",
        "activation matrix against past requests', by confidence and distance",
        _prefetch("activation-match", "token", "distance"),
        SURE,
    ),
    Strategy(
        "promoe",
        "a learned predictor (logistic) of the next layer, by deadline",
        _prefetch("logistic", "layer", "deadline"),
        SURE,
    ),
    Strategy(
        "thrifty",
        "the same predictor, calibrated: only prefetches that can be in time and are expected to pay for their copy",
        _thrifty("logistic"),
        gains=THRIFTY,
    ),
    Strategy("hybrimoe", "router weights rank the cache, prefetch by gain (logistic, next layer)", _hybrimoe, SURE),
    Strategy("seqmoe", "reservoir, matroid scheduling, probabilistic Belady", _seqmoe("reservoir"), SURE),
    Strategy(
        "seqmoe-shuffled",
        "the same with a reservoir trained on shuffled tokens: a control",
        _seqmoe("reservoir-shuffled"),
    ),
    Strategy(
        "scheduled-cross-token",
        "cross-token transitions, matroid scheduling",
        _prefetch("cross-token", "same-layer", "scheduling"),
        SURE,
    ),
    Strategy("retention-reservoir", "probabilistic Belady over the reservoir, 8 steps", _retention("reservoir")),
    Strategy(
        "retention-cross-token", "probabilistic Belady over cross-token transitions, 8 steps", _retention("cross-token")
    ),
    Strategy(
        "belady-8-predicted", "the next 8 steps as the reservoir predicts them, then last use", _first("reservoir")
    ),
    Strategy(
        "belady-8-shuffled",
        "the same with a reservoir trained on shuffled tokens: a control",
        _first("reservoir-shuffled"),
    ),
    Strategy(
        "next-use",
        "gradient-boosted prediction of the next use ranks the cache",
        _next_use,
    ),
    Strategy(
        "prefill-hot", "the prompt's most used experts, fixed for the decode", placement.prefill_hot, by_capacity=True
    ),
    Strategy(
        "prompt-conditioned",
        "the experts of the nearest past requests after 16 tokens",
        placement.prompt_conditioned,
        by_capacity=True,
    ),
)


def chosen(names: Sequence[str] | None) -> list[Strategy]:
    """The strategies of `names`, or all. Raises ConfigError for one that does not exist or is named twice."""
    if not names:
        return list(STRATEGIES)
    for place, name in enumerate(names):
        if name in names[:place]:
            raise ConfigError(f"the strategy '{name}' is named twice")
    return [parse(name) for name in names]


def parse(text: str) -> Strategy:
    """A strategy of the table, or a combination. Raises ConfigError."""
    for strategy in STRATEGIES:
        if strategy.name == text:
            return strategy
    name, *parts = text.split(":")
    given = dict(part.partition("=")[::2] for part in parts)
    if name == "retention":
        _refuse_unknown(text, given, {"predictor"})
        return Strategy(text, "probabilistic Belady", _retention(_predictor(text, given, several_steps=True)))
    if name != "prefetch":
        raise ConfigError(
            f"there is no strategy '{text}'; strategies: {', '.join(one.name for one in STRATEGIES)}, "
            "prefetch:predictor=P:when=W:order=O:ranking=R, retention:predictor=P"
        )
    _refuse_unknown(text, given, {"predictor", "when", "order", "ranking"})
    when, order, base = given.get("when", "token"), given.get("order", "deadline"), given.get("ranking", "decayed-lfu")
    for value, allowed in ((when, tuple(WHEN)), (order, ORDERS), (base, RANKINGS)):
        if value not in allowed:
            raise ConfigError(f"strategy '{text}': '{value}' is not one of {', '.join(allowed)}")
    predictor = _predictor(text, given)
    _refuse_foresight(text, predictor, when)
    made = Strategy(text, "a combination", _prefetch(predictor, when, order, base))
    return replace(made, confidences=SURE)


def _refuse_unknown(text: str, given: dict[str, str], known: set[str]) -> None:
    for name in given:
        if name not in known:
            raise ConfigError(
                f"strategy '{text}': there is no parameter '{name}'; parameters: {', '.join(sorted(known))}"
            )


def _predictor(text: str, given: dict[str, str], *, several_steps: bool = False) -> str:
    from pyanalysis.studies.predictors.table import PREDICTORS  # noqa: PLC0415 - the table alone needs no scikit-learn

    able = [name for name, make in PREDICTORS.items() if not several_steps or hasattr(make(0), "forecast")]
    if given.get("predictor") not in able:
        raise ConfigError(f"strategy '{text}' needs predictor=P with one of {', '.join(able)}")
    return given["predictor"]


def _refuse_foresight(text: str, predictor: str, when: str) -> None:
    """What a predictor looks at must have happened when its candidates appear."""
    from pyanalysis.studies.predictors.table import PREDICTORS  # noqa: PLC0415 - as above

    known = PREDICTORS[predictor](0).known
    if known == "layer" and when != "layer":
        raise ConfigError(f"strategy '{text}': {predictor} looks at the layer before of the same token: when=layer")
    if when == "same-layer" and predictor not in ("cross-token", "last-token", "popularity"):
        raise ConfigError(f"strategy '{text}': {predictor} looks at other layers of the token before: when=token")
