"""The exceptions of ggml_moecache.

MoeCacheError
├── ConfigError             a parameter or variable has a value that it cannot have (also a ValueError)
├── ModelFileError          the model file is missing, truncated, or not a GGUF (also a ValueError)
├── MissingDependencyError  llama-cpp-python or llama.cpp's programs are not installed (also an ImportError)
└── BackendError            llama.cpp or the plugin refused: another ggml version, no such device, or the load failed
"""


class MoeCacheError(Exception):
    """Base of every exception that this package raises on purpose."""


class ConfigError(MoeCacheError, ValueError):
    pass


class ModelFileError(MoeCacheError, ValueError):
    pass


class MissingDependencyError(MoeCacheError, ImportError):
    pass


class BackendError(MoeCacheError):
    """`reason` is the code of the plugin's table when it was the plugin that refused, else "none"."""

    def __init__(self, message: str, reason: str = "none") -> None:
        super().__init__(message)
        self.reason = reason
