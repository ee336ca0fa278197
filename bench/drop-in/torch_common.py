# SPDX-License-Identifier: MIT
"""torch_common.py: chooses the allocator (WEIR_TORCH_PLUGGABLE), and reads PyTorch's own figures of its memory."""

import os

import torch


def choose_allocator():
    """Makes PyTorch use the allocator library that WEIR_TORCH_PLUGGABLE names, if the variable is set.

    Must be called before the first allocation."""
    library = os.environ.get("WEIR_TORCH_PLUGGABLE")
    if library:
        torch.cuda.memory.change_current_allocator(torch.cuda.memory.CUDAPluggableAllocator(
            library, "weir_torch_alloc", "weir_torch_free"))


def records_streams():
    """Returns True if Tensor.record_stream works.  It does not work with a pluggable allocator."""
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
