# SPDX-License-Identifier: MIT
"""weir_cuda: weir from Python.

    weir_cuda.torch.install()           weir as PyTorch's allocator
    weir_cuda.cupy, .rmm, .numba        as that of CuPy, RMM and Numba
    weir_cuda.jax.environment()         what JAX has to be told; .check() whether it took
    weir_cuda.stats().reserved           figures of what serves this process
    weir_cuda.trim()                    gives idle memory back while the program goes on
    weir_cuda.Allocator(limit="4GiB")   allocators for your own code
    weir_cuda.replay("gpt2-train")      a trace on an engine, without a GPU

`python -m weir_cuda' is the program weir.  Importing this package opens neither weir's library nor CUDA.
"""

from __future__ import annotations

from ._allocator import Allocator, Error, OutOfMemoryError, stats
from ._library import Statistics, adapters
from ._program import Replay, replay
from ._trim import Trimmed, trim

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "Allocator",
    "Error",
    "OutOfMemoryError",
    "Replay",
    "Statistics",
    "Trimmed",
    "adapters",
    "cupy",
    "jax",
    "numba",
    "replay",
    "rmm",
    "stats",
    "torch",
    "trim",
    "version",
]

_MODULES = ("cupy", "jax", "numba", "rmm", "torch", "torch_snapshot")


def version() -> str:
    """The version of weir's library."""
    from . import _library

    found: str = _library.library().weir_version().decode()
    return found


def __getattr__(name: str) -> Any:
    if name in _MODULES:  # each imports its framework, so not before it is asked for
        import importlib

        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
