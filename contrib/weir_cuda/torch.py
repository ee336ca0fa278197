# SPDX-License-Identifier: MIT
"""weir_cuda.torch: weir as PyTorch's allocator.

    import weir_cuda.torch
    weir_cuda.torch.install()        # before the first tensor on a GPU, and before torch.cuda.init

Under `weir run' install does nothing: it is done already.  weir replaces the whole allocator, by a shim that is
compiled once for each PyTorch; weir-torch(1) says where.  Without a shim PyTorch has weir as a plug-in
(CUDAPluggableAllocator), with fewer functions.  Either way weir has statistics:

    print(weir_cuda.torch.stats(0).reserved)

PyTorch keeps its own allocator if PYTORCH_ALLOC_CONF names a backend, or PYTORCH_NO_CUDA_MEMORY_CACHING is set.
Settings are the WEIR_ variables.  What holds for the plug-in under graph capture, for record_stream and when memory
runs out stands in weir/adapters.h.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import warnings
from typing import Any

import torch

from . import _library
from ._allocator import stats

__all__ = ["allocator", "install", "stats"]

_HOOKS = {
    "set_init_fn": "weir_torch_init",
    "set_reset_fn": "weir_torch_reset",
    "set_memory_fraction_fn": "weir_torch_memory_fraction",
    "set_base_alloc_fn": "weir_torch_base_alloc",
    "set_record_stream_fn": "weir_torch_record_stream",
}

_installed: Any = None  # PyTorch wants a plug-in to live


def allocator() -> Any:
    """A torch.cuda.memory.CUDAPluggableAllocator with all hooks set: for a plug-in, or for a MemPool."""
    module = _library.adapters()
    plug = torch.cuda.memory.CUDAPluggableAllocator(module._name, "weir_torch_alloc",
                                                    "weir_torch_free")
    for setter, function in _HOOKS.items():
        address = ctypes.cast(getattr(module, function), ctypes.c_void_p).value
        getattr(plug.allocator(), setter)(address)
    return plug


def _unwanted() -> str | None:
    """Why the user wants none of weir, as weir__shim_disabled_by of the library has it; or None."""
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        if re.search(r"(^|,) *backend[: ]", os.environ.get(name, "")):
            return f"{name} names a backend"
    name = "PYTORCH_NO_CUDA_MEMORY_CACHING"
    return f"{name} is set" if name in os.environ else None


def _shim() -> ctypes.CDLL:
    """The shim, compiled in a process of its own if there is none.  RuntimeError: what is lacking."""
    try:
        program = _library.program()
    except FileNotFoundError as error:
        raise RuntimeError(str(error)) from None
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    told = subprocess.run([program, "torch", "--build", "--", sys.executable], env=plain, check=False,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if told.returncode:
        raise RuntimeError(told.stdout.strip() or "weir torch --build failed")
    try:
        # For all that is loaded later: the shim asks for weir's functions by their names.
        ctypes.CDLL(_library.library()._name, ctypes.RTLD_GLOBAL)
        return ctypes.CDLL(told.stdout.strip().rpartition(": ")[2])
    except OSError as error:
        raise RuntimeError(str(error)) from error


def install() -> None:
    global _installed
    if _installed is not None or _library.is_preloaded():
        return
    unwanted = _unwanted()
    if unwanted:
        warnings.warn(f"PyTorch keeps its own allocator, because {unwanted}", stacklevel=2)
        return
    if torch.cuda.is_initialized():
        raise RuntimeError("call weir_cuda.torch.install() before the first CUDA tensor")
    try:
        shim = _shim()
        shim.weir_torch_install.restype = ctypes.c_char_p
        declined = shim.weir_torch_install()
        if declined:
            raise RuntimeError(declined.decode())
        _installed = shim
    except RuntimeError as error:
        warnings.warn("weir is a plug-in of PyTorch, so torch.cuda.memory_stats, memory_reserved and the like fail: "
                      f"{error}", stacklevel=2)
        plug = allocator()
        torch.cuda.memory.change_current_allocator(plug)
        _installed = plug
