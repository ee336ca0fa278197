# SPDX-License-Identifier: MIT
"""weir_torch: weir as PyTorch's allocator.

    import weir_torch
    weir_torch.install()        # before the first tensor on a GPU, and before torch.cuda.init

Under `weir run' install does nothing: it is done already.  weir replaces the whole allocator, by a shim that is compiled once for each
PyTorch; weir-torch(1) says where.  Without a shim PyTorch has weir as a plug-in (CUDAPluggableAllocator), with fewer
functions.  Either way weir has statistics:

    print(weir_torch.stats(0).reserve)

PyTorch keeps its own allocator if PYTORCH_ALLOC_CONF names a backend, or PYTORCH_NO_CUDA_MEMORY_CACHING is set.
Settings are the WEIR_ variables.  What holds for the plug-in under graph capture, for record_stream and when memory
runs out stands in weir/adapters.h.
"""

import ctypes
import os
import re
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
_is_plug_in = False


def allocator():
    """A torch.cuda.memory.CUDAPluggableAllocator with all hooks set: for a plug-in, or for a MemPool."""
    module = weir_ctypes.adapters()
    plug = torch.cuda.memory.CUDAPluggableAllocator(module._name, "weir_torch_alloc",
                                                    "weir_torch_free")
    for setter, function in _HOOKS.items():
        address = ctypes.cast(getattr(module, function), ctypes.c_void_p).value
        getattr(plug.allocator(), setter)(address)
    return plug


def _unwanted():
    """Why the user wants none of weir, as weir__shim_unwanted_by of the library has it; or None."""
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        if re.search(r"(^|,) *backend[: ]", os.environ.get(name, "")):
            return f"{name} names a backend"
    name = "PYTORCH_NO_CUDA_MEMORY_CACHING"
    return f"{name} is set" if name in os.environ else None


def _is_under_run():
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        return "/libweir-preload.so" in maps.read()


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
    global _installed, _is_plug_in
    if _installed is not None or _is_under_run():
        return
    unwanted = _unwanted()
    if unwanted:
        warnings.warn(f"PyTorch keeps its own allocator, because {unwanted}", stacklevel=2)
        return
    if torch.cuda.is_initialized():
        raise RuntimeError("call weir_torch.install() before the first CUDA tensor")
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
        _installed, _is_plug_in = plug, True


def stats(device=0):
    """weir's figures of that device, from the library that serves: under `weir run' the one that it has loaded."""
    library = weir_ctypes.library if _is_plug_in else ctypes.CDLL(None)
    if not hasattr(library, "weir_device_allocator"):
        library = weir_ctypes.library
    handle, figures = ctypes.c_void_p(), weir_ctypes.Statistics(size=ctypes.sizeof(weir_ctypes.Statistics))
    weir_ctypes.check(f"device {device}", library.weir_device_allocator(device, ctypes.byref(handle)))
    weir_ctypes.check("statistics", library.weir_stats(handle, ctypes.byref(figures)))
    return figures
