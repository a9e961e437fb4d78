"""An expert-level cache for Mixture-of-Experts models in stock llama.cpp.

load_model      a llama_cpp.Llama on the MoECache device
ExpertCache     the cache of a model: figures, export and import of its session, reset, freeze
status          what is cached where, or why nothing is
RoutingRing     the routing events of a model as they happen; set_request_id, run_metadata, set_run_field
config          the plugin's settings (a module)
backend_path    libggml-moecache.so, for GGML_BACKEND_PATH of stock programs
llama_bin_dir   llama.cpp's stock programs of the build in use
errors          the exceptions, all below MoeCacheError
"""

import contextlib as _contextlib
import os as _os

from ggml_moecache import config, errors
from ggml_moecache._native import ggml_version
from ggml_moecache._native import version as __version__
from ggml_moecache._paths import backend_path, embedded_model, llama_bin_dir, llama_library_dir
from ggml_moecache.errors import MoeCacheError
from ggml_moecache.expert_cache import ExpertCache
from ggml_moecache.model import load_model, status
from ggml_moecache.routing import RoutingEvent, RoutingRing, run_metadata, set_request_id, set_run_field

# llama-cpp-python reads this once, on its first import. Whoever needs the folder reports a bad MOECACHE_LLAMA_DIR.
with _contextlib.suppress(errors.ConfigError):
    if (_folder := llama_library_dir()) is not None:
        _os.environ.setdefault("LLAMA_CPP_LIB_PATH", str(_folder))

__all__ = [
    "ExpertCache",
    "MoeCacheError",
    "RoutingEvent",
    "RoutingRing",
    "__version__",
    "backend_path",
    "config",
    "embedded_model",
    "errors",
    "ggml_version",
    "llama_bin_dir",
    "load_model",
    "run_metadata",
    "set_request_id",
    "set_run_field",
    "status",
]
