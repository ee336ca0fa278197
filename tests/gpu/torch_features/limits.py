# SPDX-License-Identifier: MIT
"""Out of memory, limits, and settings of the allocator."""

import torch

from .support import (
    DEVICE, GIB, MIB, block, counted, counted_library, feature, holds, out_of_memory, program, settle, since,
    total_memory)


@feature
def oom_message():
    message = out_of_memory(400 * GIB)
    assert message.startswith("CUDA out of memory. Tried to allocate 400.00 GiB. GPU 0 has a total capacity of"), message
    assert float(torch.ones(1 << 20, device=DEVICE).sum()) == 1 << 20


@feature
def oom_kinds():
    """Programs catch it by these types."""
    for kind in (torch.OutOfMemoryError, torch.cuda.OutOfMemoryError, RuntimeError):
        try:
            block(400 * GIB)
            raise AssertionError("400 GiB were given out")
        except kind:
            pass


@feature
def oom_counted():
    before = torch.cuda.memory_stats()["num_ooms"]
    out_of_memory(400 * GIB)
    assert torch.cuda.memory_stats()["num_ooms"] == before + 1


@feature
def oom_loop():
    """Memory is used to its end; afterwards most of it is one block again."""
    settle()
    free, blocks = torch.cuda.mem_get_info()[0], []
    try:
        while True:
            blocks.append(block(GIB))
    except torch.cuda.OutOfMemoryError:
        pass
    assert len(blocks) >= free // GIB - 2, f"{len(blocks)} of {free / GIB:.1f} GiB"
    count = len(blocks)
    del blocks
    settle()
    large = block(free - 4 * GIB)
    del large
    return f"{count} GiB"


@feature
def retry_after_oom():
    """What a program frees after an OutOfMemoryError, it can allocate."""
    settle()
    quarter = int(torch.cuda.mem_get_info()[0] * 0.24)
    parts = [block(quarter) for _ in range(4)]
    out_of_memory(2 * quarter)
    del parts[1:3]
    again = block(2 * quarter)
    again[-1] = 1
    assert int(again[-1]) == 1
    del again, parts
    settle()


@feature
def cached_memory_serves_other_sizes():
    """What is cached in blocks of one size is not out of memory for a larger block."""
    settle()
    free = torch.cuda.mem_get_info()[0]
    parts = [block(free // 20) for _ in range(18)]
    del parts
    large = block(int(free * 0.85))
    del large
    settle()


@feature
def oom_observer():
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *words: seen.append(words))
    out_of_memory(400 * GIB)
    assert len(seen) == 1, seen
    device, allocated, total, free = seen[0]
    assert device == 0 and allocated >= 400 * GIB and total == total_memory() and 0 < free <= total, seen


@feature
def fraction():
    settle()
    total = total_memory()
    torch.cuda.set_per_process_memory_fraction(0.1)
    try:
        assert abs(torch.cuda.get_per_process_memory_fraction() - 0.1) < 1e-6
        message = out_of_memory(total // 5)
        assert message.startswith("CUDA out of memory"), message
        first = block(total // 20)
        out_of_memory(total // 15)
        del first
        second = block(total // 15)
        del second
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    third = block(total // 5)
    del third
    settle()


@feature
def fraction_above_one_is_an_error():
    for wrong in (1.5, -0.1):
        try:
            torch.cuda.set_per_process_memory_fraction(wrong)
            raise AssertionError(f"a fraction of {wrong} is taken")
        except ValueError:
            pass


@feature
def change_allocator_refused():
    """The allocator cannot be changed once it is in use; PyTorch says so in its own words."""
    tensor = block(MIB, 1)
    allocator, counts = counted()
    try:
        torch.cuda.memory.change_current_allocator(allocator)
        raise AssertionError("a used allocator was changed")
    except RuntimeError as error:
        assert "Can't swap an already initialized allocator" in str(error), error
    assert holds(tensor, 1) and holds(block(MIB, 2), 2) and counts()[0] == 0


OWN_ALLOCATOR = """
import ctypes, sys, torch
library = sys.argv[1]
torch.cuda.memory.change_current_allocator(
    torch.cuda.memory.CUDAPluggableAllocator(library, 'counted_alloc', 'counted_free'))
x = torch.full((1 << 20,), 3, dtype=torch.int32, device='cuda')
print(int(x.sum()) == 3 << 20, ctypes.c_long.in_dll(ctypes.CDLL(library), 'allocs').value > 0)
"""


@feature
def own_allocator_for_all():
    """A program that brings its own allocator gets it."""
    done = program(OWN_ALLOCATOR, counted_library())
    assert done.returncode == 0 and done.stdout.split() == ["True", "True"], done.stdout + done.stderr[-300:]


SETTINGS = """
import torch
live = []
for i in range(200):
    size = (i * 7919) % (24 << 20) + 1
    live.append((torch.full((size,), i, dtype=torch.uint8, device='cuda'), i))
    if len(live) > 20:
        tensor, was = live.pop((i * 31) % len(live))
        assert bool((tensor == was).all())
free = torch.cuda.mem_get_info()[0]
large = torch.ones(1 << 28, device='cuda')
del large
torch.cuda.empty_cache()
print('right', torch.cuda.get_allocator_backend(),
      any(s['is_expandable'] for s in torch.cuda.memory_snapshot()), torch.cuda.memory_allocated() > 0)
"""


def with_settings(text):
    done = program(SETTINGS, environment={"PYTORCH_ALLOC_CONF": text, "PYTORCH_CUDA_ALLOC_CONF": None})
    assert done.returncode == 0 and done.stdout.startswith("right"), f"{text}: {done.stderr.strip()[-300:]}"
    words = done.stdout.split()
    assert words[3] == "True", "PyTorch counts nothing"
    return words


@feature
def settings_expandable():
    """Programs set this, and it must work with every allocator."""
    return "expandable: " + with_settings("expandable_segments:True")[2]


@feature
def settings_not_expandable():
    assert with_settings("expandable_segments:False")[2] == "False"


@feature
def settings_others():
    with_settings("max_split_size_mb:128,garbage_collection_threshold:0.8")
    with_settings("roundup_power2_divisions:4")
    with_settings("backend:native,pinned_use_cuda_host_register:True")


FRACTION = """
import torch
total = torch.cuda.mem_get_info()[1]
seen = []
torch.cuda.init()
torch._C._cuda_attach_out_of_memory_observer(lambda *words: seen.append(words))
print(torch.cuda.get_per_process_memory_fraction())
kept = torch.empty(total // 20, dtype=torch.uint8, device='cuda')
try:
    torch.empty(total // 5, dtype=torch.uint8, device='cuda')
except torch.cuda.OutOfMemoryError as error:
    print(str(error).splitlines()[0])
more = torch.empty(total // 40, dtype=torch.uint8, device='cuda')
stats = torch.cuda.memory_stats()
print(stats['num_ooms'], stats.get('num_oom_rejections'), len(seen))
"""


def with_fraction(text):
    done = program(FRACTION, environment={"PYTORCH_ALLOC_CONF": text, "PYTORCH_CUDA_ALLOC_CONF": None})
    assert done.returncode == 0, done.stderr.strip()[-300:]
    return done.stdout.splitlines()


@feature
@since(2, 11)
def settings_fraction():
    fraction, message, counts = with_fraction("per_process_memory_fraction:0.1")
    assert float(fraction) == 0.1 and message.startswith("CUDA out of memory. Tried to allocate"), message
    assert counts.split()[0] == "1" and counts.split()[2] == "1", counts


@feature
@since(2, 11)
def settings_of_newer_versions():
    lines = with_fraction("large_segment_size_mb:64,graph_capture_record_stream_reuse:True")
    assert float(lines[0]) == 1 and lines[1].split()[0] == "0", lines


@feature
@since(2, 12)
def settings_fraction_rejects():
    """A request beyond the fraction counts once: as a rejection or, as PyTorch counts it, as out of memory."""
    lines = with_fraction("per_process_memory_fraction:0.1,throw_on_cudamalloc_oom:True")
    assert lines[0] == "0.1" and lines[1].startswith("CUDA out of memory."), lines
    ooms, rejections, observed = map(int, lines[2].split())
    assert ooms + rejections == 1 and observed == ooms, lines
    assert rejections == ("preemptively rejected because it would exceed" in lines[1]), lines


SEGMENTS = """
import torch
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    tensor = torch.empty(64 << 20, dtype=torch.uint8, device='cuda')
segments = pool.snapshot()
print(all(s['is_expandable'] for s in segments), sum(s['total_size'] for s in segments) >= 64 << 20)
"""


@feature
@since(2, 12)
def settings_expandable_pool():
    """A MemPool lies in expandable segments, too."""
    done = program(SEGMENTS, environment={"PYTORCH_ALLOC_CONF": "expandable_segments:True",
                                          "PYTORCH_CUDA_ALLOC_CONF": None})
    assert done.returncode == 0 and done.stdout.split() == ["True", "True"], done.stdout + done.stderr[-300:]


@feature
def settings_wrong():
    """What PyTorch does not know is an error of PyTorch."""
    done = program(SETTINGS, environment={"PYTORCH_ALLOC_CONF": "no_such_thing:1", "PYTORCH_CUDA_ALLOC_CONF": None})
    assert done.returncode != 0 and "no_such_thing" in done.stderr, done.stderr[-300:]


@feature
def no_caching():
    done = program(SETTINGS, environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})
    assert done.returncode == 0 and done.stdout.startswith("right"), done.stderr[-300:]


@feature
def settings_changed_in_the_run():
    torch.cuda.memory._set_allocator_settings("max_split_size_mb:256")
    assert holds(block(300 * MIB, 1), 1)
    torch.cuda.memory._set_allocator_settings("")
