"""The native build: what the core may include, and CMake's messages for sources that are not llama.cpp's."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The interface of transfers and the simulator's clock are built with the core: no device is behind them.
TRANSFER = [
    ROOT / "ggml_moecache" / "transfer" / name for name in ("transfer.h", "virtual-clock.h", "virtual-clock.cpp")
]
CORE = [*sorted((ROOT / "ggml_moecache" / "core").rglob("*.*")), *TRANSFER]


def test_core_includes_neither_ggml_nor_cuda():
    """core is pure C++17: its own headers, those of TRANSFER, the C API and the standard library."""
    includes = {
        (path.name, name)
        for path in CORE
        for name in re.findall(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE)
    }
    assert len(includes) > 20
    allowed = re.compile(
        r"(core/[a-z0-9/-]+|transfer/transfer|transfer/virtual-clock)\.h|ggml-moecache\.h|[a-z_]+|(sys/)?[a-z]+\.h"
    )
    assert {(path, name) for path, name in includes if not allowed.fullmatch(name)} == set()
    assert {(path, name) for path, name in includes if "cuda" in name or name.startswith("ggml.")} == set()


def test_core_compiles_by_itself():
    """Without GGML's headers on the include path."""
    compiler = shutil.which("c++")
    assert compiler is not None
    definitions = ['-DMOECACHE_VERSION="0"', '-DMOECACHE_GGML_VERSION="0"']
    options = ["-std=c++17", "-fsyntax-only", f"-I{ROOT / 'ggml_moecache'}", f"-I{ROOT / 'ggml_moecache' / 'include'}"]
    sources = [str(path) for path in CORE if path.suffix == ".cpp"]
    result = subprocess.run([compiler, *options, *definitions, *sources], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def configure(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = ["cmake", "-S", str(ROOT), "-B", str(tmp_path / "build"), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_folder_without_ggml(tmp_path):
    result = configure(tmp_path, f"-DLLAMA_CPP_DIR={tmp_path}")
    assert result.returncode != 0
    message = one_line(result.stderr)
    assert f"LLAMA_CPP_DIR={tmp_path} has no ggml/include/ggml.h; name a llama.cpp source checkout" in message


def fake_llama_cpp(folder: Path, version_lines: str) -> Path:
    for name in ("include/ggml.h", "include/ggml-backend.h", "src/ggml-backend-impl.h", "src/ggml-impl.h"):
        (folder / "ggml" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "ggml" / name).touch()
    (folder / "ggml" / "CMakeLists.txt").write_text(version_lines)
    return folder


VERSION_LINES = "set(GGML_VERSION_MAJOR 9)\nset(GGML_VERSION_MINOR 8)\nset(GGML_VERSION_PATCH 7)\n"


@pytest.mark.parametrize("kind", ["checkout", "sdist", "build"])
def test_version_is_read_from_the_sources(tmp_path, kind):
    source = fake_llama_cpp(tmp_path / ("sdist/vendor/llama.cpp" if kind == "sdist" else "source"), VERSION_LINES)
    named = {"checkout": source, "sdist": tmp_path / "sdist", "build": tmp_path / "other"}[kind]
    if kind == "build":
        named.mkdir()
        (named / "CMakeCache.txt").write_text(f"CMAKE_HOME_DIRECTORY:INTERNAL={source}\n")
    result = configure(tmp_path, f"-DLLAMA_CPP_DIR={named}")
    assert result.returncode == 0, result.stderr
    assert f"-- ggml 9.8.7 from {source}" in result.stdout


def test_sources_without_a_version(tmp_path):
    result = configure(tmp_path, f"-DLLAMA_CPP_DIR={fake_llama_cpp(tmp_path / 'source', 'project(ggml)')}")
    assert result.returncode != 0
    assert "no GGML_VERSION_MAJOR, _MINOR and _PATCH found" in one_line(result.stderr)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("-DMOECACHE_SANITIZE=memory", "MOECACHE_SANITIZE must be address, thread or undefined. Got 'memory' instead."),
        ("-DMOECACHE_CUDA=maybe", "MOECACHE_CUDA must be AUTO, ON or OFF. Got 'maybe' instead."),
    ],
)
def test_nonsense_options(tmp_path, option, message):
    source = fake_llama_cpp(tmp_path / "source", VERSION_LINES)
    result = configure(tmp_path, f"-DLLAMA_CPP_DIR={source}", option)
    assert result.returncode != 0
    assert message in one_line(result.stderr)


def test_one_line_when_cuda_is_left_out(tmp_path):
    source = fake_llama_cpp(tmp_path / "source", VERSION_LINES)
    result = configure(tmp_path, f"-DLLAMA_CPP_DIR={source}", "-DMOECACHE_CUDA=OFF")
    assert [line for line in result.stdout.splitlines() if "CUDA" in line] == [
        "-- CUDA parts are left out: MOECACHE_CUDA=OFF"
    ]
