# SPDX-License-Identifier: MIT
"""torch_common.py: the choice of the allocator by WEIR_TORCH_PLUGGABLE, and PyTorch's own figures."""

import os

import torch


def choose_allocator():
    """Chooses the allocator that WEIR_TORCH_PLUGGABLE names, if it is set.  Call this before the first allocation."""
    library = os.environ.get("WEIR_TORCH_PLUGGABLE")
    if library:
        torch.cuda.memory.change_current_allocator(torch.cuda.memory.CUDAPluggableAllocator(
            library, "weir_torch_alloc", "weir_torch_free"))


def records_streams():
    """Returns whether record_stream works.  A pluggable allocator lacks it unless the program sets it."""
    return "WEIR_TORCH_PLUGGABLE" not in os.environ


def peak():
    """Returns the peak of allocated bytes, or None if the allocator does not count them."""
    try:
        return torch.cuda.max_memory_allocated() or None
    except RuntimeError:
        return None


def facts():
    try:
        backend = torch.cuda.get_allocator_backend()
    except RuntimeError:
        backend = None
    try:
        reserved = torch.cuda.max_memory_reserved() / (1 << 20)
    except RuntimeError:
        reserved = None
    try:
        stats = torch.cuda.memory_stats()
    except RuntimeError:
        stats = {}
    return {"version": torch.__version__, "backend": backend, "reserved_mib": reserved,
            "device_allocs": stats.get("num_device_alloc"), "device_frees": stats.get("num_device_free")}
