"""The built library as a file: what it needs, what it exports, and that every open symbol is llama.cpp's."""

from __future__ import annotations

import os
import re
import subprocess

import ggml_moecache

# Entry points of the C API (include/ggml-moecache.h) and of GGML's loader.
EXPORTS = {
    "ggml_backend_score",
    "ggml_backend_init",
    "moecache_version",
    "moecache_ggml_version",
    "moecache_config_set",
    "moecache_config_get",
    "moecache_status_json",
    "moecache_ring_open",
    "moecache_ring_close",
    *(f"moecache_session_{name}" for name in ("export", "export_file", "freeze", "import", "import_file", "reset")),
    "moecache_ring_detach",
    "moecache_ring_get_info",
    "moecache_ring_peek",
    "moecache_ring_release",
    "moecache_set_request_id",
    "moecache_run_json",
    "moecache_run_set",
}


def output(*command: str, **environment: str) -> str:
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True).stdout


def test_needed_libraries_and_no_search_path():
    """The two SONAMEs that llama.cpp's libraries have, the system's, and no folder of the build machine."""
    dynamic = output("readelf", "-d", "-W", str(ggml_moecache.backend_path()))
    needed = re.findall(r"\(NEEDED\)\s+Shared library: \[(.*)\]", dynamic)
    assert needed[:2] == ["libggml-base.so.0", "libggml.so.0"]
    assert set(needed[2:]) <= {
        "libstdc++.so.6",
        "libm.so.6",
        "libgcc_s.so.1",
        "libc.so.6",
        "libdl.so.2",
        "libpthread.so.0",
        "librt.so.1",
        "ld-linux-x86-64.so.2",
    }
    assert "RPATH" not in dynamic
    assert "RUNPATH" not in dynamic


def test_exported_symbols():
    symbols = output("nm", "-D", "--defined-only", str(ggml_moecache.backend_path()))
    assert {line.split()[-1] for line in symbols.splitlines()} == EXPORTS


def test_every_open_symbol_is_found_in_llama_cpp():
    """The plugin is linked against stand-ins, so the linker has not checked this."""
    llama_bin = str(ggml_moecache.llama_bin_dir())
    resolved = output("ldd", "-r", str(ggml_moecache.backend_path()), LD_LIBRARY_PATH=llama_bin)
    assert f"libggml-base.so.0 => {llama_bin}" in resolved
    assert "undefined symbol" not in resolved
    assert "not found" not in resolved
