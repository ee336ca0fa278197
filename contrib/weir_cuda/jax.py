# SPDX-License-Identifier: MIT
"""weir_cuda.jax: what JAX has to be told so that weir serves it, and whether it took.

    os.environ.update(weir_cuda.jax.environment())      # before JAX first uses a device
    import jax
    jax.numpy.zeros(8)
    weir_cuda.jax.check()                               # raises if weir does not serve JAX

JAX takes its memory by the driver's functions, so weir's library must be loaded before the program starts: by
`weir run', which also sets these variables.  Without it, start the program with LD_PRELOAD naming
libweir-preload.so.  Importing this module does not import JAX.
"""

from __future__ import annotations

import os

from . import _library
from ._allocator import Error, stats

_ALLOCATOR, _OPTIONS = "XLA_PYTHON_CLIENT_ALLOCATOR", "JAX_PJRT_CLIENT_CREATE_OPTIONS"
_POOLS = "cuda_async"


def _told() -> tuple[str, str]:
    """The variable that says JAX's allocator, and what it says; "": it is JAX's default."""
    for option in os.environ.get(_OPTIONS, "").split(";"):
        name, _, value = option.partition(":")
        if name == "allocator":  # which goes before the other variable
            return _OPTIONS, value
    return _ALLOCATOR, os.environ.get(_ALLOCATOR, "").lower()


def environment() -> dict[str, str]:
    """The variables that are still to be set; empty under `weir run', or if they are set.

    An allocator that the environment names stays, as with `weir run': then ValueError says which variable names it.
    """
    variable, allocator = _told()
    if allocator not in ("", _POOLS):
        raise ValueError(f"{variable} says {allocator}, so JAX does not use CUDA's memory pools: remove it")
    missing = {_ALLOCATOR: _POOLS, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if allocator:
        del missing[_ALLOCATOR]
    return {name: value for name, value in missing.items() if not os.environ.get(name)}


def is_served() -> bool:
    """Whether weir serves JAX, as far as variables tell."""
    return _library.is_preloaded() and _told()[1] == _POOLS


def check(device: int = 0) -> None:
    """Raises RuntimeError, with what to do, unless weir has served a request of JAX on this device."""
    variable, allocator = _told()
    if not _library.is_preloaded():
        raise RuntimeError("weir does not serve JAX: the program was not started by `weir run'")
    if allocator != _POOLS:
        raise RuntimeError(
            f"weir does not serve JAX: {variable} says {allocator or 'nothing'}; set {_ALLOCATOR}={_POOLS} before "
            "JAX first uses a device"
        )
    try:
        served = stats(device).attempts
    except Error as error:
        raise RuntimeError(f"weir does not serve JAX: {error}") from error
    if not served:
        raise RuntimeError(
            f"weir has served no request on device {device}: use an array first; if that was done, "
            f"{variable} was set after JAX first used a device"
        )
