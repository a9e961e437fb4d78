"""`moecache doctor`: what this machine and a model would do, and why."""

from __future__ import annotations

import importlib.metadata
import os
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ggml_moecache
from ggml_moecache import _native
from ggml_moecache._paths import llama_library_dir
from ggml_moecache._probe import devices_of
from ggml_moecache.errors import BackendError
from ggml_moecache.gguf_file import read_model
from pyanalysis.settings import in_force

if TYPE_CHECKING:
    from ggml_moecache.gguf_file import ModelFile

_MIB = 1 << 20


@dataclass(frozen=True)
class Verdict:
    """What would happen: `state` active or inactive, `reason` a code of the reasons table, `text` for people."""

    state: str
    reason: str
    text: str
    all_fits: bool = False  # the weights alone would fit on the device with every expert


def _python_llama_dir() -> tuple[str | None, Path | None]:
    """Version of the installed llama-cpp-python and the folder of its own libraries, found without importing it."""
    try:
        distribution = importlib.metadata.distribution("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError:
        return None, None
    folder = Path(str(distribution.locate_file("llama_cpp"))) / "lib"
    return distribution.version, folder if (folder / "libllama.so").is_file() else None


def _host_memory_mib() -> dict[str, int]:
    page = os.sysconf("SC_PAGE_SIZE")
    available = {
        line.split(":")[0]: int(line.split()[1]) // 1024
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        if line.startswith("MemAvailable:")
    }
    total = os.sysconf("SC_PHYS_PAGES") * page // _MIB
    return {"total": total, "available": available.get("MemAvailable", total)}


def describe_machine() -> dict[str, Any]:
    """Versions, paths, devices with memory in MiB, host memory and the settings that differ from their defaults."""
    python_version, python_folder = _python_llama_dir()
    folder = llama_library_dir() or python_folder
    machine: dict[str, Any] = {
        "version": ggml_moecache.__version__,
        "ggml_version": ggml_moecache.ggml_version,
        "backend_path": str(ggml_moecache.backend_path()),
        "llama_bin_dir": None if (bin_dir := ggml_moecache.llama_bin_dir()) is None else str(bin_dir),
        "llama_library_dir": None if folder is None else str(folder),
        "llama_cpp_python": python_version,
        "llama_ggml_version": None,
        "has_gpu": False,
        "devices": [],
        "refusal": None,
        "reason": "none",
        "host_memory_mib": _host_memory_mib(),
        "settings": {v.name: value for v in _native.variables() if (value := in_force(v, os.environ)) != v.default},
    }
    if folder is None:
        machine["refusal"] = (
            "no llama.cpp libraries found: run scripts/setup, or set MOECACHE_LLAMA_DIR to a build of llama.cpp"
        )
        return machine
    try:
        found = devices_of(folder)
    except BackendError as error:
        machine["refusal"] = str(error)
        return machine
    machine["llama_ggml_version"] = found["ggml_version"]
    machine.update({key: found[key] for key in ("devices", "has_gpu", "refusal", "reason")})
    return machine


def describe_model(model: ModelFile) -> dict[str, Any]:
    """Size and experts of the model; sizes in bytes, `expert_types` counts tensors per type."""
    sizes = model.expert_sizes_bytes()
    experts = model.expert_tensors
    return {
        "path": str(model.path),
        "architecture": model.architecture,
        "size_bytes": model.size_bytes,
        "n_layers": model.n_layers,
        "n_moe_layers": len(sizes),
        "n_experts": model.n_experts,
        "n_experts_used": model.n_experts_used,
        "expert_types": dict(Counter(tensor.type_name for tensor in experts)),
        "expert_bytes_min": min(sizes.values(), default=0),
        "expert_bytes_max": max(sizes.values(), default=0),
        "experts_bytes": sum(tensor.size_bytes for tensor in experts),
        "weights_bytes": sum(tensor.size_bytes for tensor in model.tensors),
    }


def judge(machine: dict[str, Any], model: dict[str, Any]) -> Verdict:
    """What the model would do on the first MoECache device of the machine."""
    device = next((d for d in machine["devices"] if d["name"].startswith("MoECache")), None)
    if machine["refusal"] is not None:
        return Verdict("inactive", machine["reason"], machine["refusal"])
    if device is None:
        reason = "unsupported_gpu" if machine["has_gpu"] else "no_gpu"
        return Verdict("inactive", reason, "no MoECache device was registered")
    if not model["experts_bytes"]:
        return Verdict("inactive", "no_expert_tensors", "the model is dense: it runs, and there is nothing to cache")
    experts_mib, weights_mib = model["experts_bytes"] / _MIB, model["weights_bytes"] / _MIB
    host_mib = machine["host_memory_mib"]["available"]
    store = f"{experts_mib:.1f} MiB of experts in host memory ({host_mib} MiB available)"
    all_fits = weights_mib < device["free_mib"]
    fit = (
        f"capacity all {'fits' if all_fits else 'does not fit'}: {weights_mib:.1f} MiB of weights, "
        f"{device['free_mib']} MiB free on {device['name']} (KV cache and compute buffers come on top)"
    )
    wants_all = machine["settings"].get("GGML_MOECACHE_CAPACITY") == "all"
    return Verdict("active", "no_room" if wants_all and not all_fits else "none", f"{store}; {fit}", all_fits=all_fits)


def diagnose(model_path: Path | None) -> dict[str, Any]:
    """The whole report. Raises ModelFileError if the model cannot be read."""
    model = describe_model(read_model(model_path or ggml_moecache.embedded_model()))
    machine = describe_machine()
    return {**machine, "model": model, "verdict": asdict(judge(machine, model))}


def _model_lines(model: dict[str, Any]) -> list[str]:
    lines = [
        f"model              {model['path']}",
        f"architecture       {model['architecture']}, {model['n_layers']} layers, {model['size_bytes'] / _MIB:.1f} MiB",
    ]
    if model["experts_bytes"]:
        low, high = model["expert_bytes_min"] / 1024, model["expert_bytes_max"] / 1024
        size = f"{low:.1f} KiB" if low == high else f"{low:.1f} to {high:.1f} KiB"
        types = ", ".join(f"{name} ({n} tensors)" for name, n in model["expert_types"].items())
        count = f"{model['n_experts']} in each of {model['n_moe_layers']} layers, top-{model['n_experts_used']}"
        lines += [
            f"experts            {count}",
            f"expert types       {types}",
            f"expert size        {size}; all experts {model['experts_bytes'] / _MIB:.1f} MiB",
        ]
    return lines


def as_text(report: dict[str, Any]) -> str:
    """The report for people."""
    python = report["llama_cpp_python"] or "not installed (pip install 'ggml-moecache[llama]')"
    host = report["host_memory_mib"]
    llama = f"ggml {report['llama_ggml_version'] or 'unknown'} in {report['llama_library_dir'] or 'no folder'}"
    lines = [
        f"ggml_moecache      {report['version']}, built for ggml {report['ggml_version']}",
        f"llama.cpp          {llama}",
        f"llama-cpp-python   {python}",
        f"backend_path       {report['backend_path']}",
        f"llama_bin_dir      {report['llama_bin_dir'] or 'not found'}",
        f"host memory        {host['available']} of {host['total']} MiB available",
    ]
    for device in report["devices"]:
        memory = f"{device['free_mib']} of {device['total_mib']} MiB free"
        lines.append(f"device             {device['name']}: {device['description']} ({device['type']}), {memory}")
    lines += [f"setting            {name}={value}" for name, value in report["settings"].items()]
    lines += _model_lines(report["model"])
    verdict = report["verdict"]
    code = "" if verdict["reason"] in ("none", *verdict["text"].split(": ")) else f" {verdict['reason']}:"
    lines.append(f"verdict            {verdict['state']}:{code} {verdict['text']}")
    return "\n".join(lines)
