# SPDX-License-Identifier: MIT
"""weir_torch: weir as PyTorch's allocator.

    import weir_torch
    weir_torch.install()        # before the first tensor on a GPU, and before torch.cuda.init

Under `weir run' this is done already.  weir replaces the whole allocator, by a shim that is compiled once for each
PyTorch; weir-torch(1) says where.  Without a shim PyTorch has weir as a plug-in (CUDAPluggableAllocator), with fewer
functions and its own statistics:

    print(weir_torch.stats(0).reserve)

Settings are the WEIR_ variables.  What holds for the plug-in under graph capture, for record_stream and when memory
runs out stands in weir/adapters.h.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import warnings

import torch
import weir_ctypes

_HOOKS = {
    "set_init_fn": "weir_torch_init",
    "set_reset_fn": "weir_torch_reset",
    "set_memory_fraction_fn": "weir_torch_memory_fraction",
    "set_base_alloc_fn": "weir_torch_base_alloc",
    "set_record_stream_fn": "weir_torch_record_stream",
}

_installed = None  # PyTorch wants a plug-in to live


def allocator():
    """A torch.cuda.memory.CUDAPluggableAllocator with all hooks set: for a plug-in, or for a MemPool."""
    module = weir_ctypes.adapters()
    plug = torch.cuda.memory.CUDAPluggableAllocator(module._name, "weir_torch_alloc",
                                                    "weir_torch_free")
    for setter, function in _HOOKS.items():
        address = ctypes.cast(getattr(module, function), ctypes.c_void_p).value
        getattr(plug.allocator(), setter)(address)
    return plug


def _shim():
    """The shim, compiled in a process of its own if there is none.  RuntimeError: what is lacking."""
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../bin")
    program = shutil.which("weir", path=os.pathsep.join([beside, os.environ.get("PATH", "")]))
    if not program:
        raise RuntimeError("the program weir is not on PATH")
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    told = subprocess.run([program, "torch", "--build", "--", sys.executable], env=plain, check=False,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if told.returncode:
        raise RuntimeError(told.stdout.strip() or "weir torch --build failed")
    try:
        # For all that is loaded later: the shim asks for weir's functions by their names.
        ctypes.CDLL(weir_ctypes.library._name, ctypes.RTLD_GLOBAL)
        return ctypes.CDLL(told.stdout.strip().rpartition(": ")[2])
    except OSError as error:
        raise RuntimeError(str(error)) from error


def install():
    global _installed
    if _installed is not None:
        return
    try:
        shim = _shim()
        if shim.weir_torch_install() != 0:
            raise RuntimeError("the shim declined")
        _installed = shim
    except RuntimeError as error:
        warnings.warn(f"weir is a plug-in of PyTorch, with fewer functions than as its allocator: {error}", stacklevel=2)
        plug = allocator()
        torch.cuda.memory.change_current_allocator(plug)
        _installed = plug


def stats(device=0):
    return weir_ctypes.Allocator(device).stats()
