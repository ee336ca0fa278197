# SPDX-License-Identifier: MIT
"""weir_torch: weir as PyTorch's allocator.

    import weir_torch
    weir_torch.install()        # before the first tensor on a GPU, and before torch.cuda.init
    ...
    print(weir_torch.stats(0).reserve)

Settings are the WEIR_ variables.  What holds under graph capture, for record_stream and when memory runs out
stands in weir/adapters.h.
"""

import ctypes

import torch
import weir_ctypes

_HOOKS = {
    "set_init_fn": "weir_torch_init",
    "set_reset_fn": "weir_torch_reset",
    "set_memory_fraction_fn": "weir_torch_memory_fraction",
    "set_base_alloc_fn": "weir_torch_base_alloc",
    "set_record_stream_fn": "weir_torch_record_stream",
}

_allocator = None  # PyTorch wants it to live


def allocator():
    """A torch.cuda.memory.CUDAPluggableAllocator with all hooks set: for install, or for a MemPool."""
    module = weir_ctypes.adapters()
    plug = torch.cuda.memory.CUDAPluggableAllocator(module._name, "weir_torch_alloc",
                                                    "weir_torch_free")
    for setter, function in _HOOKS.items():
        address = ctypes.cast(getattr(module, function), ctypes.c_void_p).value
        getattr(plug.allocator(), setter)(address)
    return plug


def install():
    global _allocator
    if _allocator is None:
        _allocator = allocator()
        torch.cuda.memory.change_current_allocator(_allocator)


def stats(device=0):
    return weir_ctypes.Allocator(device).stats()
