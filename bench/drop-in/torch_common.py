# SPDX-License-Identifier: MIT
"""PyTorch: the allocator that WEIR_TORCH_PLUGGABLE names, if it does, and what PyTorch tells."""

import os

import torch


def choose_allocator():
    """Before the first allocation."""
    library = os.environ.get("WEIR_TORCH_PLUGGABLE")
    if library:
        torch.cuda.memory.change_current_allocator(torch.cuda.memory.CUDAPluggableAllocator(
            library, "weir_torch_alloc", "weir_torch_free"))


def records_streams():
    """A pluggable allocator has no record_stream unless it is given one."""
    return "WEIR_TORCH_PLUGGABLE" not in os.environ


def peak():
    """None where the allocator keeps no count."""
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
