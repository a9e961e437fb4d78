"""A calibration for people: the measurements with their quartiles, then the costs."""

from __future__ import annotations

from typing import Any

from pyanalysis.calibrate.costs import COST_FIELDS

Times = dict[str, dict[str, float]]


def as_text(cost: dict[str, Any]) -> str:
    """The tables of a cost model that `calibrate` has made."""
    found = cost["calibration"]
    model = found["model"]
    gpu = found["machine"]["gpu"] or "none"
    shape = f"{model['n_moe_layers']} MoE layers, {model['n_experts']} experts, top-{model['top_k']}"
    parts = [
        f"machine   {found['machine']['cpu']} ({found['machine']['n_cpus']} CPUs), GPU: {gpu}",
        f"model     {model['file']}: {shape}, {cost['expert_bytes']:,} bytes an expert on average",
        "",
        *_cpu(found["cpu_event_ns_by_threads_and_misses"], found["n_threads"]),
    ]
    if found["gpu_event_ns_by_hits"]:
        parts += ["", "GPU, us per event: median (quartiles)", f"{'hits':>8}"]
        parts += [f"{n:>8}  {_spread(spread)}" for n, spread in found["gpu_event_ns_by_hits"].items()]
    if found["copies_to_device"]:
        parts += ["", *_copies(found["copies_to_device"])]
    if found["event_ns_by_copies_beside"]:
        misses = max(1, model["top_k"] // 2)
        parts += ["", f"CPU event of {misses} misses, us, by experts copied beside it: median (quartiles)"]
        parts += [f"{n:>8}  {_spread(spread)}" for n, spread in found["event_ns_by_copies_beside"].items()]
    if found["decode_token_ns_by_capacity"]:
        parts += ["", "decode, us per token: median (quartiles)"]
        parts += [f"  capacity {n:4}  {_spread(s)}" for n, s in found["decode_token_ns_by_capacity"].items()]
    parts += ["", "costs"]
    for name in COST_FIELDS:
        value = cost[name]
        parts.append(f"  {name:27} {'not measured' if value is None else f'{value:,.0f}'}")
    parts += [f"not measured: {what}: {why}" for what, why in found["not_measured"].items()]
    return "\n".join(parts)


def _spread(spread: dict[str, float]) -> str:
    median, q1, q3 = (spread[name] / 1000 for name in ("median", "q1", "q3"))
    return f"{median:.1f} ({q1:.1f} to {q3:.1f})"


def _cpu(by_threads: dict[str, Times], chosen: int) -> list[str]:
    """Misses down, thread counts across."""
    heads = [f"{n} thread{'s' * (n != '1')}{' *' * (n == str(chosen))}" for n in by_threads]
    columns = [[_spread(times[n]) for n in times] for times in by_threads.values()]
    misses = list(next(iter(by_threads.values())))
    lines = ["CPU, us per event: median (quartiles); * the fastest, which the costs are of"]
    lines.append(f"{'misses':>8}  " + "  ".join(f"{head:>24}" for head in heads))
    lines += [f"{n:>8}  " + "  ".join(f"{c[row]:>24}" for c in columns) for row, n in enumerate(misses)]
    return lines


def _copies(copies: list[dict[str, Any]]) -> list[str]:
    lines = ["host to device copies: median (quartiles)"]
    lines.append(f"{'bytes':>12}  {'memory':8}  {'alone, us':>26}  {'queued, us':>26}  {'queued, GB/s':>12}")
    for copy in copies:
        rate = copy["n_bytes"] / copy["queued_ns"]["median"]
        memory = "pinned" if copy["pinned"] else "ordinary"
        alone, queued = _spread(copy["alone_ns"]), _spread(copy["queued_ns"])
        lines.append(f"{copy['n_bytes']:>12,}  {memory:8}  {alone:>26}  {queued:>26}  {rate:>12.2f}")
    return lines
