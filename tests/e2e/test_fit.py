"""--fit with a device too small for the model: layers stay on the device, experts are booked as host memory."""

from __future__ import annotations

import re

import pytest

from tests.e2e.programs import SAME_KERNELS, run_moecache, run_stock
from tests.harness.environment import Build
from tests.models.tokenizer import embedded_model

SMALL = ("-c", "512", "-b", "64", "-ub", "64")
ARGUMENTS = (
    "-m",
    str(embedded_model()),
    "-p",
    "SQLite is",
    "-n",
    "16",
    "--temp",
    "0",
    "-no-cnv",
    "--no-display-prompt",
)
# | MoECache0 (...) | total = free + (self = model + context + compute) + unaccounted |
DEVICE_ROW = re.compile(r"- MoECache0 \(.*?\) \| +(\d+) = +(\d+) \+ \( *(\d+) = +(\d+) \+ +(\d+) \+ +(\d+)\)")
HOST_ROW = re.compile(r"- Host +\| +(\d+) = +(\d+) \+ +(\d+) \+ +(\d+)")


@pytest.mark.parametrize("device_mib", ["8", "7"])
def test_experts_are_host_memory(build: Build, device_mib: str) -> None:
    """The embedded model: 17.3 MiB, of which 13.5 MiB are experts and 3.2 MiB belong to the device."""
    ours = run_moecache(
        build,
        "llama-completion",
        *ARGUMENTS,
        *SMALL,
        *SAME_KERNELS,
        *("-fit", "on", "-fitt", "1", "-lv", "4"),
        environment={"GGML_MOECACHE_DEVICE_MIB": device_mib},
    )
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout == run_stock(build, "llama-completion", *ARGUMENTS, *SMALL, *SAME_KERNELS).stdout
    assert "offloaded 9/9 layers to GPU" in ours.stderr
    assert re.search(r"MoECache\S* model buffer size = +13\.50 MiB", ours.stderr)
    device = DEVICE_ROW.findall(ours.stderr)
    host = HOST_ROW.findall(ours.stderr)
    assert device, ours.stderr
    assert host, ours.stderr
    total, _, _, model, _, compute = (int(figure) for figure in device[-1])
    assert total == int(device_mib)
    assert model == 3
    assert compute == 1
    assert int(host[-1][1]) == 14  # 13.5 MiB of experts and 0.56 MiB of token embedding
    context = ours.active_context()
    assert context["n_layers"] == 8
    assert context["n_layers_elsewhere"] == 0


def test_too_small_for_the_layers(build: Build) -> None:
    """With 3 MiB --fit has to leave layers on the CPU: fewer on the device, the same text."""
    ours = run_moecache(
        build,
        "llama-completion",
        *ARGUMENTS,
        *SMALL,
        *SAME_KERNELS,
        *("-fit", "on", "-fitt", "1", "-lv", "4"),
        environment={"GGML_MOECACHE_DEVICE_MIB": "3", "MOECACHE_REQUIRE": ""},
    )
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout == run_stock(build, "llama-completion", *ARGUMENTS, *SMALL, *SAME_KERNELS).stdout
    assert "offloaded 9/9 layers to GPU" not in ours.stderr


@pytest.mark.parametrize("capacity", ["25%", "256", "3MiB"])
def test_slots_have_their_memory_before_the_context(build: Build, capacity: str) -> None:
    """--fit on a device of 24 MiB shortens a context that is not given, and the slots are all there."""
    arguments = ("llama-completion", *ARGUMENTS, *SAME_KERNELS, "-fit", "on", "-fitt", "1", "-lv", "4")
    lengths, free = [], []
    for chosen in ("0", capacity):
        ours = run_moecache(build, *arguments, capacity=chosen, environment={"GGML_MOECACHE_DEVICE_MIB": "24"})
        assert ours.returncode == 0, ours.stderr
        assert "offloaded 9/9 layers to GPU" in ours.stderr
        lengths.append(int(re.findall(r"n_ctx += (\d+)", ours.stderr)[0]))
        free.append(int(re.findall(r"using device MoECache0 .* - (\d+) MiB free", ours.stderr)[0]))
    context = ours.active_context()
    # 13,824 bytes an expert; 3 MiB are 227 of them.
    assert context["n_resident"] == {"25%": 256, "256": 256, "3MiB": 227}[capacity]
    assert context["fallbacks"] == []
    assert lengths[1] < lengths[0] < 8192
    assert free[0] - free[1] in (context["resident_bytes"] >> 20, (context["resident_bytes"] >> 20) + 1)


def test_capacity_all_needs_room(build: Build) -> None:
    """Copies of all experts, 13.5 MiB, do not fit into 8 MiB: the reason is named, the text is right."""
    ours = run_moecache(
        build,
        "llama-completion",
        *ARGUMENTS,
        *SMALL,
        *SAME_KERNELS,
        *("-fit", "off", "-ngl", "99"),
        capacity="all",
        environment={"GGML_MOECACHE_DEVICE_MIB": "8", "MOECACHE_REQUIRE": ""},
    )
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout == run_stock(build, "llama-completion", *ARGUMENTS, *SMALL, *SAME_KERNELS).stdout
    assert "no_room" in ours.stderr
    context = ours.active_context()
    assert "no_room" in (context["reason"], *context["fallbacks"])
    assert context["n_resident"] == 0
