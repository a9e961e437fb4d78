"""Which llama.cpp build is used: the order of the variables, and what the import of the package leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ggml_moecache import _paths
from ggml_moecache.errors import ConfigError


@pytest.fixture
def clean(monkeypatch):
    for name in ("LLAMA_CPP_LIB_PATH", "MOECACHE_LLAMA_DIR"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def make_build(folder: Path, where: str) -> Path:
    (folder / where).mkdir(parents=True, exist_ok=True)
    (folder / where / "libllama.so").touch()
    (folder / where / "llama-completion").touch()
    return folder


@pytest.mark.parametrize("where", [".", "bin", "lib", "build/bin"])
def test_named_build_is_found_in_its_usual_folders(clean, tmp_path, where):
    clean.setenv("MOECACHE_LLAMA_DIR", str(make_build(tmp_path, where)))
    assert _paths.llama_library_dir() == tmp_path / where
    assert _paths.llama_bin_dir() == tmp_path / where


def test_named_build_without_libraries(clean, tmp_path):
    clean.setenv("MOECACHE_LLAMA_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match=f"MOECACHE_LLAMA_DIR={tmp_path} holds no libllama.so"):
        _paths.llama_library_dir()


def test_order(clean, tmp_path):
    recorded, named = make_build(tmp_path / "recorded", "."), make_build(tmp_path / "named", ".")
    record = tmp_path / "venv" / "share" / "ggml-moecache" / "llama-dir"
    record.parent.mkdir(parents=True)
    record.write_text(f"{recorded}\n")
    clean.setattr(sys, "prefix", str(tmp_path / "venv"))
    assert _paths.llama_library_dir() == recorded
    clean.setenv("MOECACHE_LLAMA_DIR", str(named))
    assert _paths.llama_library_dir() == named
    clean.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path / "first"))
    assert _paths.llama_library_dir() == tmp_path / "first"


def test_programs_beside_installed_libraries(clean, tmp_path):
    """An installed llama.cpp: lib/libllama.so, bin/llama-completion."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libllama.so").touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "llama-completion").touch()
    clean.setenv("MOECACHE_LLAMA_DIR", str(tmp_path))
    assert _paths.llama_bin_dir() == tmp_path / "bin"


def test_programs_on_path(clean, tmp_path):
    clean.setattr(sys, "prefix", str(tmp_path))
    clean.setenv("PATH", str(make_build(tmp_path / "usr", "bin") / "bin"))
    assert _paths.llama_bin_dir() == tmp_path / "usr" / "bin"
    clean.setenv("PATH", str(tmp_path))
    assert _paths.llama_bin_dir() is None


@pytest.mark.parametrize("own", [None, "/somewhere/else"])
def test_import_sets_the_library_path_unless_it_is_set(own):
    environment = {k: v for k, v in os.environ.items() if k not in ("LLAMA_CPP_LIB_PATH", "MOECACHE_LLAMA_DIR")}
    if own:
        environment["LLAMA_CPP_LIB_PATH"] = own
    code = (
        "import os, sys, ggml_moecache; assert 'llama_cpp' not in sys.modules; print(os.environ['LLAMA_CPP_LIB_PATH'])"
    )
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    record = Path(sys.prefix, "share", "ggml-moecache", "llama-dir").read_text().strip()
    assert result.stdout.strip() == (own or record)
