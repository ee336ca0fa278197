# SPDX-License-Identifier: MIT
"""What PyTorch says of its memory, against what the program allocated and what the device says."""

import torch

from .support import DEVICE, GIB, MIB, block, feature, settle, since


@feature
def memory_stats():
    settle()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()
    tensors = [block(64 * MIB) for _ in range(3)]
    after = torch.cuda.memory_stats()
    for key in ("allocated_bytes", "requested_bytes", "active_bytes"):
        grew = after[f"{key}.all.current"] - before[f"{key}.all.current"]
        assert grew == 192 * MIB, f"{key} grew by {grew}"
    assert after["allocation.all.current"] - before["allocation.all.current"] == 3
    assert after["allocation.all.allocated"] - before["allocation.all.allocated"] == 3
    assert after["segment.all.current"] >= 1
    assert after["reserved_bytes.all.current"] == torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
    del tensors
    last = torch.cuda.memory_stats()
    assert last["allocated_bytes.all.current"] == before["allocated_bytes.all.current"]
    assert last["allocation.all.freed"] - before["allocation.all.freed"] == 3
    assert set(before) == set(last)
    return f"{len(last)} figures"


@feature
def requested_sizes():
    """What a program asked for is told to the byte; what it got is not much more."""
    settle()
    for size in (1, 1000, 100_003, 1_000_003, 30_000_001):
        before = torch.cuda.memory_stats()
        tensor = block(size)
        after = torch.cuda.memory_stats()
        requested, allocated = (after[f"{key}.all.current"] - before[f"{key}.all.current"]
                                for key in ("requested_bytes", "allocated_bytes"))
        assert requested == size, f"{size} bytes: requested {requested}"
        assert size <= allocated <= size + max(512, size // 4), f"{size} bytes: allocated {allocated}"
        del tensor


@feature
def peaks():
    settle()
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    assert torch.cuda.max_memory_allocated() == base
    first = block(256 * MIB)
    second = block(128 * MIB)
    del first
    assert torch.cuda.memory_allocated() - base == 128 * MIB
    assert torch.cuda.max_memory_allocated() - base == 384 * MIB
    assert torch.cuda.max_memory_reserved() >= torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() - base == 128 * MIB
    assert torch.cuda.max_memory_reserved() == torch.cuda.memory_reserved()
    del second
    settle()
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == base


@feature
def accumulated():
    tensor = block(MIB)
    torch.cuda.reset_accumulated_memory_stats()
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.allocated"] == stats["allocation.all.freed"] == 0
    del tensor
    stats = torch.cuda.memory_stats()
    assert stats["allocation.all.freed"] == 1 and stats["allocated_bytes.all.freed"] == MIB


@feature
def small_and_large():
    settle()  # without a context there are no figures
    before = torch.cuda.memory_stats()
    tensors = [block(1024) for _ in range(10)] + [block(16 * MIB)]
    after = torch.cuda.memory_stats()
    new = {pool: after[f"allocation.{pool}.current"] - before[f"allocation.{pool}.current"]
           for pool in ("small_pool", "large_pool")}
    assert new == {"small_pool": 10, "large_pool": 1}, new
    del tensors


@feature
def memory_summary():
    tensor = block(64 * MIB)
    text = torch.cuda.memory_summary()
    assert "PyTorch CUDA memory summary" in text and "GPU reserved memory" in text, text[:200]
    assert len(text) > 2000
    short = torch.cuda.memory_summary(abbreviated=True)
    assert "Allocated memory" in short and len(short) < len(text)
    del tensor


@feature
def memory_snapshot():
    settle()
    tensor, small = block(64 * MIB), block(1000)
    segments = torch.cuda.memory_snapshot()
    assert sum(s["total_size"] for s in segments) == torch.cuda.memory_reserved()
    assert sum(s["allocated_size"] for s in segments) == torch.cuda.memory_allocated()
    for one in (tensor, small):
        segment = next(s for s in segments if s["address"] <= one.data_ptr() < s["address"] + s["total_size"])
        owner = next(b for b in segment["blocks"] if b["address"] == one.data_ptr())
        assert owner["state"] == "active_allocated" and owner["requested_size"] == one.numel()
        assert sum(b["size"] for b in segment["blocks"]) == segment["total_size"]
        assert segment["device"] == 0


@feature
def reserved_is_device_memory():
    """memory_reserved grows and shrinks as the device's free memory does."""
    settle()
    block(4 * GIB).fill_(1)  # modules are loaded now
    settle()
    reserved, (free, _) = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()
    tensor = block(4 * GIB)
    grew, used = torch.cuda.memory_reserved() - reserved, free - torch.cuda.mem_get_info()[0]
    assert grew >= 4 * GIB and abs(grew - used) <= 64 * MIB, f"reserved grew {grew >> 20} MiB, used {used >> 20} MiB"
    del tensor
    settle()
    left, used = torch.cuda.memory_reserved() - reserved, free - torch.cuda.mem_get_info()[0]
    assert left <= 64 * MIB and abs(left - used) <= 64 * MIB, f"reserved {left >> 20} MiB, used {used >> 20} MiB more"


@feature
def empty_cache_returns():
    settle()
    before = torch.cuda.mem_get_info()[0]
    tensor = block(20 * GIB)
    during = torch.cuda.mem_get_info()[0]
    del tensor
    settle()
    after = torch.cuda.mem_get_info()[0]
    assert before - during >= 19 * GIB and after - during >= 19 * GIB, [n >> 20 for n in (before, during, after)]


@feature
def cache_is_reused():
    """A program that repeats itself takes nothing more from the device."""

    def step():
        parts = [block(n * MIB) for n in (1, 7, 33, 100, 250)]
        del parts[1::2]
        parts += [block(n * MIB) for n in (7, 30, 3)]

    for _ in range(3):
        step()
    reserved, calls = torch.cuda.memory_reserved(), torch.cuda.memory_stats()["num_device_alloc"]
    for _ in range(50):
        step()
    assert torch.cuda.memory_reserved() == reserved
    assert torch.cuda.memory_stats()["num_device_alloc"] == calls


@feature
@since(2, 9)
def accelerator_names():
    """The figures by the names that all accelerators share."""
    tensor = torch.ones(1 << 20, device=DEVICE)
    assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated()
    assert torch.accelerator.memory_reserved() == torch.cuda.memory_reserved()
    assert torch.accelerator.max_memory_allocated() == torch.cuda.max_memory_allocated()
    assert torch.accelerator.memory_stats()["allocated_bytes.all.current"] == torch.cuda.memory_allocated()
    torch.accelerator.empty_cache()
    del tensor
