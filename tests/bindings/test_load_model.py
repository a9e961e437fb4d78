"""load_model: a normal Llama on the device, the settings of the process, and one message for each bad input."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import ggml_moecache
from ggml_moecache import _paths, _probe, errors
from tests.bindings.gguf_files import write_moe

PROMPT = "SQLite is a library that"


@pytest.fixture(scope="module")
def llama_cpp():
    """Imported by the tests, not at collection: it loads ggml into the process for good."""
    return importlib.import_module("llama_cpp")


@pytest.fixture(scope="module")
def low_level():
    return importlib.import_module("llama_cpp.llama_cpp")


def generate(llm) -> str:
    return llm.create_completion(PROMPT, max_tokens=24, temperature=0)["choices"][0]["text"]


@pytest.mark.parametrize("capacity", [0, "0", "all"])
def test_text_and_status(capacity):
    """The embedded model's 8 x 128 experts: none or all of them on the device; the text is not empty and repeats."""
    with_device = ggml_moecache.load_model(capacity=capacity, verbose=False)
    first, second = generate(with_device), generate(with_device)
    context = ggml_moecache.status()["contexts"][-1]
    with_device.close()
    assert first == second
    assert len(first.split()) > 5
    assert context["state"] == "active"
    assert context["device"] == "MoECache0"
    assert context["capacity"] == str(capacity)
    assert (context["n_experts"], context["n_layers"]) == (1024, 8)
    assert context["n_resident"] == (1024 if capacity == "all" else 0)
    # Every row is computed once, on one side: 8 experts in each of 8 layers per token.
    assert context["n_events"] > 0
    assert context["n_hits"] + context["n_misses"] == 8 * context["n_events"]
    assert (context["n_misses"] if capacity == "all" else context["n_hits"]) == 0


def test_construction_leaves_llama_cpp_as_it_was(low_level):
    before = low_level.llama_model_default_params
    llm = ggml_moecache.load_model(verbose=False)
    assert low_level.llama_model_default_params is before
    assert llm.model_params.devices is not None
    assert low_level.llama_model_default_params().devices is None
    llm.close()


def test_other_threads_get_stock_parameters_meanwhile(monkeypatch, llama_cpp, low_level):
    """A Llama that another thread constructs during load_model is not put on our device."""
    seen = []
    real = llama_cpp.Llama

    class Observed(real):
        def __init__(self, *arguments, **options):
            thread = threading.Thread(target=lambda: seen.append(low_level.llama_model_default_params().devices))
            thread.start()
            thread.join()
            super().__init__(*arguments, **options)

    monkeypatch.setattr(llama_cpp, "Llama", Observed)
    llm = ggml_moecache.load_model(verbose=False)
    assert seen == [None]
    assert llm.model_params.devices is not None
    llm.close()


def test_defaults_can_be_overridden(low_level):
    llm = ggml_moecache.load_model(verbose=False)
    assert llm.model_params.load_mode == low_level.LLAMA_LOAD_MODE_NONE
    assert llm.model_params.n_gpu_layers == 0x7FFFFFFF
    llm.close()
    llm = ggml_moecache.load_model(verbose=False, use_mmap=True, n_gpu_layers=3, n_ctx=256)
    assert llm.model_params.load_mode == low_level.LLAMA_LOAD_MODE_MMAP
    assert (llm.model_params.n_gpu_layers, llm.n_ctx()) == (3, 256)
    llm.close()


def test_several_sequences_share_one_cache(low_level):
    llm = ggml_moecache.load_model(n_seq_max=3, n_ctx=768, verbose=False)
    assert (low_level.llama_n_seq_max(llm._ctx.ctx), llm.n_ctx(), llm._ctx.params.kv_unified) == (3, 768, True)
    llm.close()
    alone = ggml_moecache.load_model(n_ctx=256, verbose=False)  # the next model has llama.cpp's default again
    assert (low_level.llama_n_seq_max(alone._ctx.ctx), alone._ctx.params.kv_unified) == (1, False)
    alone.close()


@pytest.mark.parametrize("n", [0, 257, True, "2", 1.0])
def test_nonsense_number_of_sequences(n):
    with pytest.raises(errors.ConfigError) as caught:
        ggml_moecache.load_model(n_seq_max=n)
    words = f"The 'n_seq_max' parameter of load_model must be a whole number from 1 to 256. Got {n!r} instead."
    assert str(caught.value) == words


@pytest.mark.parametrize("capacity", ["x", "", "ALL", "50 %", "101%", -1, True, 0.5])
def test_nonsense_capacity(capacity):
    with pytest.raises(errors.ConfigError) as caught:
        ggml_moecache.load_model(capacity=capacity)
    rule = "a number of experts, a share like 25%, a size like 2GiB or 512MiB, auto, or all"
    assert str(caught.value) == f"The 'capacity' parameter of load_model must be {rule}. Got {capacity!r} instead."


def test_bad_files(tmp_path):
    with pytest.raises(errors.ModelFileError, match="does not exist"):
        ggml_moecache.load_model(tmp_path / "none.gguf")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(ggml_moecache.embedded_model().read_bytes()[:1_000_000])
    with pytest.raises(errors.ModelFileError, match="truncated: it has 1000000 bytes"):
        ggml_moecache.load_model(cut)


def test_model_that_llama_cpp_refuses(tmp_path):
    """A well-formed GGUF without a model's tensors: llama.cpp's refusal becomes one BackendError."""
    with pytest.raises(errors.BackendError, match=r"could not load .*moe\.gguf on MoECache0 .*verbose=True"):
        ggml_moecache.load_model(write_moe(tmp_path / "moe.gguf"), verbose=False)


@pytest.mark.parametrize("device", ["MoECache7", "CPU", ""])
def test_unknown_device(device):
    with pytest.raises(errors.BackendError, match=f"must be one of: MoECache0.*Got '{device}' instead"):
        ggml_moecache.load_model(device=device)


def test_unknown_argument_is_llama_cpp_s_own_error():
    with pytest.raises(ValueError, match="tensors that exceed maximum supported devices"):
        ggml_moecache.load_model(verbose=False, tensor_split=[1.0] * 1000)


def test_config_round_trip():
    names = [v.name for v in ggml_moecache.config.variables()]
    assert "GGML_MOECACHE_DEVICE_MIB" in names
    ggml_moecache.config.set_value("GGML_MOECACHE_DEVICE_MIB", "512")
    assert ggml_moecache.config.get("GGML_MOECACHE_DEVICE_MIB") == "512"
    ggml_moecache.config.set_value("GGML_MOECACHE_DEVICE_MIB", None)
    assert ggml_moecache.config.get("GGML_MOECACHE_DEVICE_MIB") == ""
    with pytest.raises(errors.ConfigError, match=r"GGML_MOECACHE_DEVICE_MIB must be .* Got '-3' instead"):
        ggml_moecache.config.set_value("GGML_MOECACHE_DEVICE_MIB", "-3")
    with pytest.raises(errors.ConfigError, match="NO_SUCH"):
        ggml_moecache.config.set_value("NO_SUCH", "1")
    with pytest.raises(errors.ConfigError, match="NO_SUCH is no variable"):
        ggml_moecache.config.get("NO_SUCH")


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def test_status_before_any_model():
    result = run_python("import ggml_moecache; ggml_moecache.status()")
    assert "BackendError: The plugin is not loaded in this process: call load_model first." in result.stderr


def test_without_llama_cpp_python():
    """None in sys.modules makes the import fail as an uninstalled package does."""
    code = "import sys; sys.modules['llama_cpp'] = None\nimport ggml_moecache; ggml_moecache.load_model()"
    result = run_python(code)
    assert (
        "MissingDependencyError: llama-cpp-python is not installed: pip install 'ggml-moecache[llama]'" in result.stderr
    )


def test_folder_without_libraries(tmp_path):
    result = run_python("import ggml_moecache; ggml_moecache.load_model()", LLAMA_CPP_LIB_PATH=str(tmp_path))
    assert "MissingDependencyError: llama-cpp-python is installed but finds no llama.cpp libraries" in result.stderr


def test_standin_refused():
    """A user who says GGML_MOECACHE_STANDIN=0 on a machine without a GPU gets no device, and is told so, each time."""
    if _probe.devices_of(_paths.llama_library_dir())["has_gpu"]:
        pytest.skip("this machine has a GPU, so no stand-in is asked for")
    code = (
        "import ggml_moecache\n"
        "for attempt in range(2):\n"
        "    try: ggml_moecache.load_model(verbose=False)\n"
        "    except ggml_moecache.errors.BackendError as error: print(error)\n"
    )
    lines = run_python(code, GGML_MOECACHE_STANDIN="0").stdout.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("the plugin was not loaded: no_gpu: ") for line in lines)


@pytest.mark.parametrize("name", ["GGML_MOECACHE_CAPACITY", "GGML_MOECACHE_DEVICE_MIB"])
def test_bad_setting_of_the_environment(name):
    code = "import ggml_moecache; ggml_moecache.load_model(verbose=False)"
    result = run_python(code, **{name: "x"})
    assert f"BackendError: the plugin was not loaded: bad_config: {name} must" in result.stderr


def test_capacity_of_the_environment_holds_where_none_is_given():
    code = """
import ggml_moecache
for capacity in (None, 0, None):
    llm = ggml_moecache.load_model(capacity=capacity, verbose=False, n_ctx=64)
    llm.eval([5, 6, 7])
    llm.close()
print([context["capacity"] for context in ggml_moecache.status()["contexts"]])
"""
    assert run_python(code, GGML_MOECACHE_CAPACITY="all").stdout == "['all', '0', 'all']\n"


def test_threads_get_the_capacity_they_asked_for():
    """Settings are the process's: setting, constructing and taking back are one step."""
    code = """
import threading, ggml_moecache
ggml_moecache.load_model(verbose=False, n_ctx=64).close()
def load(capacity):
    for _ in range(4):
        llm = ggml_moecache.load_model(capacity=capacity, verbose=False, n_ctx=64)
        llm.eval([5, 6, 7])
        llm.close()
threads = [threading.Thread(target=load, args=(capacity,)) for capacity in ("0", "all") * 2]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
contexts = ggml_moecache.status()["contexts"]
print([sum(context["capacity"] == wanted for context in contexts) for wanted in ("all", "0")])
"""
    assert run_python(code).stdout == "[8, 8]\n"


def test_another_copy_of_the_plugin_is_the_one_that_is_asked(tmp_path):
    """GGML_BACKEND_PATH has loaded a copy: settings and status are the copy's."""
    copy = tmp_path / "another name.so"
    copy.write_bytes(ggml_moecache.backend_path().read_bytes())
    code = """
import ggml_moecache, llama_cpp
llama_cpp.llama_backend_init()
llm = ggml_moecache.load_model(capacity="all", verbose=False, n_ctx=64)
llm.eval([5, 6, 7])
print([context["capacity"] for context in ggml_moecache.status()["contexts"]])
"""
    result = run_python(code, GGML_BACKEND_PATH=str(copy), GGML_MOECACHE_STANDIN="1")
    assert result.stdout == "['all']\n", result.stderr


def test_a_required_cache_is_an_exception_and_the_exit_status():
    """A setting that keeps the library from being loaded raises as ever; who goes on without it does not end well."""
    code = """
import ggml_moecache
try:
    ggml_moecache.load_model()
except ggml_moecache.errors.BackendError as error:
    print(error.reason)
"""
    for required, status in (("0", 0), ("1", 1)):
        result = run_python(code, GGML_MOECACHE_CAPACITY="120%", MOECACHE_REQUIRE=required)
        assert (result.stdout, result.returncode) == ("bad_config\n", status), result.stderr


@pytest.mark.usefixtures("llama_cpp")
def test_other_ggml_version(monkeypatch):
    """The check stands before the plugin is loaded, so a plugin of another version is never initialised."""
    from ggml_moecache import _plugin

    registry = _plugin.Registry()
    monkeypatch.setattr(_plugin._native, "ggml_version", "0.0.1")
    monkeypatch.setattr(
        registry, "_ggml", type("Empty", (), {"ggml_backend_reg_by_name": staticmethod(lambda _: None)})
    )
    with pytest.raises(errors.BackendError, match=r"built for ggml 0\.0\.1, this llama\.cpp has ggml 0\.25\.3"):
        registry.load_plugin()


def test_path_may_be_text_or_path():
    text = str(ggml_moecache.embedded_model())
    for path in (text, Path(text)):
        llm = ggml_moecache.load_model(path, verbose=False)
        assert llm.model_path == text
        llm.close()
