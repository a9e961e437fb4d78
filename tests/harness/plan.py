"""What a worker process shall do: load one model, then run scenarios, each in its own llama context(s).

Plain data that travels to the worker as JSON. A scenario is a list of steps; a decode step yields logits.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModelOptions:
    """How the model is loaded; the names are those of llama_model_params."""

    path: str
    n_gpu_layers: int = 99
    # False is --no-repack: the CPU backend then multiplies the weights as they lie in the file, on both sides. The
    # extra buffer types of a device (the expert store) do not depend on it, only those of the CPU backend do.
    use_extra_bufts: bool = False
    load_mode: int = -1
    load_mtp: bool = True
    split_mode: int = 1
    # (regular expression over tensor names, buffer type name) pairs as for -ot.
    overrides: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Step:
    """One action on one context of the scenario.

    decode: `tokens`, `positions`, `sequences` and `outputs` (1 where logits are wanted) of equal length. `hidden_seed`
    other than 0 adds random hidden states of `n_embd` values per token: what an MTP context gets from its target.
    text: the first `end` tokens of the file `path`, one by one, with logits for each.
    remove, shift: `sequence`, `start` and `end` position (end -1: to the end); shift adds `delta`.
    copy: `sequence` to `target` sequence. save, load: the whole state of the context, through memory.
    lora: the adapter file `path` at `scale`, replacing earlier ones; scale 0 removes it.
    warmup: graphs from here on use all experts for every token, scale 0 ends that.
    export-session, import-session: the session of the context's cache to or from the file `path`. reset-session;
    freeze-session: scale 0 ends it. An import whose message `expected` names must be refused with it.
    """

    action: str
    tokens: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()
    sequences: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    sequence: int = 0
    target: int = 0
    start: int = 0
    end: int = -1
    delta: int = 0
    path: str = ""
    expected: str = ""
    scale: float = 1.0
    context: int = 0
    hidden_seed: int = 0


@dataclass(frozen=True)
class Scenario:
    """Steps and the parameters of the contexts they run in; the names are those of llama_context_params."""

    name: str
    steps: tuple[Step, ...]
    n_ctx: int = 1024
    n_batch: int = 512
    n_ubatch: int = 512
    n_seq_max: int = 1
    kv_unified: bool = True
    flash_attn: int = -1
    op_offload: bool = True
    # LLAMA_CONTEXT_TYPE_MTP: the graph of the model's multi-token-prediction layer instead of the trunk's.
    is_mtp: bool = False
    # Read the router's choice and weights through the eval callback at every decode step.
    observe_routing: bool = False
    # Read the hidden state behind every layer (l_out) likewise.
    observe_hidden: bool = False
    # Read what every MoE block gives (ffn_moe_out, ffn_out) likewise.
    observe_blocks: bool = False
    # Environment of this scenario's contexts, which read it when they are made: (variable, value) pairs.
    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Plan:
    """Everything one worker does."""

    model: ModelOptions
    scenarios: tuple[Scenario, ...]
    n_threads: int = 2


def decode(tokens: list[int], *, start: int = 0, sequence: int = 0, outputs: str = "all", context: int = 0) -> Step:
    """Decode step for one sequence; `outputs` is "all" or "last"."""
    n_token = len(tokens)
    wanted = [1] * n_token if outputs == "all" else [0] * (n_token - 1) + [1]
    return Step(
        action="decode",
        tokens=tuple(tokens),
        positions=tuple(range(start, start + n_token)),
        sequences=(sequence,) * n_token,
        outputs=tuple(wanted),
        context=context,
    )


def to_json(plan: Plan) -> dict[str, Any]:
    """Plain form of a plan."""
    return dataclasses.asdict(plan)


def from_json(data: dict[str, Any]) -> Plan:
    """Inverse of `to_json`."""
    model = dict(data["model"])
    model["overrides"] = tuple((pattern, buffer_type) for pattern, buffer_type in model["overrides"])
    scenarios = []
    for entry in data["scenarios"]:
        steps = tuple(_step(step) for step in entry["steps"])
        settings = tuple((name, value) for name, value in entry["settings"])
        scenarios.append(Scenario(**{**entry, "steps": steps, "settings": settings}))
    return Plan(ModelOptions(**model), tuple(scenarios), data["n_threads"])


def _step(entry: dict[str, Any]) -> Step:
    """JSON has lists where a step has tuples."""
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    return Step(**fields)
