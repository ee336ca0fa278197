# SPDX-License-Identifier: MIT
"""torch.cuda.MemPool."""

import contextlib
import threading

import torch

from .support import DEVICE, GIB, MIB, block, counted, feature, holds, settle, since, total_memory, within


def pool_of(pool):
    return pool.snapshot()


@contextlib.contextmanager
def room_for(size):
    """The process may take so much more than it has reserved."""
    settle()
    allowed = torch.cuda.memory_reserved() + size
    torch.cuda.set_per_process_memory_fraction(allowed / total_memory())
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@feature
def mempool():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.ones(1 << 20, device=DEVICE)
    outside = torch.ones(1 << 20, device=DEVICE)
    assert float(inside.sum()) == 1 << 20
    segments = pool_of(pool)
    assert within(inside.data_ptr(), segments) and not within(outside.data_ptr(), segments)
    assert all(tuple(s["segment_pool_id"]) == tuple(pool.id) for s in segments)
    assert pool.use_count() == 1


@feature
def mempool_memory_comes_back():
    settle()
    before = torch.cuda.memory_reserved()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = block(2 * GIB, 1)
    del tensor
    torch.cuda.synchronize()
    assert torch.cuda.memory_reserved() - before >= 2 * GIB
    del pool
    settle()
    assert torch.cuda.memory_reserved() <= before


@feature
def mempool_reuses_its_memory():
    pool, places = torch.cuda.MemPool(), set()
    for i in range(20):
        with torch.cuda.use_mem_pool(pool):
            tensor = block(32 * MIB, i)
        places.add(tensor.data_ptr())
        del tensor
    assert len(places) == 1
    outside = block(32 * MIB)
    assert outside.data_ptr() not in places


@feature
def mempool_tensor_outlives_pool():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = block(16 * MIB, 7)
    del pool
    settle()
    others = [block(16 * MIB, 1) for _ in range(8)]
    assert holds(tensor, 7)
    del tensor, others
    settle()


@feature
def mempools_nested():
    outer, inner = torch.cuda.MemPool(), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(outer):
        first = block(4 * MIB)
        with torch.cuda.use_mem_pool(inner):
            second = block(4 * MIB)
        third = block(4 * MIB)
    assert within(first.data_ptr(), pool_of(outer)) and within(third.data_ptr(), pool_of(outer))
    assert within(second.data_ptr(), pool_of(inner)) and not within(second.data_ptr(), pool_of(outer))


@feature
def mempool_of_one_thread():
    """A pool serves the thread that uses it and no other."""
    pool, places = torch.cuda.MemPool(), []
    ready, done = threading.Event(), threading.Event()

    def other():
        ready.wait()
        places.append(block(4 * MIB))
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with torch.cuda.use_mem_pool(pool):
        inside = block(4 * MIB)
        ready.set()
        done.wait()
    thread.join()
    assert within(inside.data_ptr(), pool_of(pool)) and not within(places[0].data_ptr(), pool_of(pool))


@feature
def mempool_and_graph():
    """A graph captured into a MemPool."""
    pool, x = torch.cuda.MemPool(), torch.randn(1 << 20, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool.id):
        y = x * 2
    x.normal_()
    graph.replay()
    assert torch.equal(y, x * 2) and within(y.data_ptr(), pool_of(pool))


@feature
@since(2, 8)
def mempool_use_on_oom():
    """Idle memory of a pool serves others where the device has no more; memory of other pools does not."""
    idle, kept = torch.cuda.MemPool(use_on_oom=True), torch.cuda.MemPool()
    with room_for(820 * MIB):
        with torch.cuda.use_mem_pool(kept):
            first = block(400 * MIB)
        with torch.cuda.use_mem_pool(idle):
            second = block(400 * MIB)
        try:
            block(400 * MIB)
            raise AssertionError("memory in use was given out")
        except torch.cuda.OutOfMemoryError:
            pass
        place = second.data_ptr()
        del first, second
        third = block(300 * MIB, 5)
        # There is no room for a comparison of all of it.
        assert third.data_ptr() == place and holds(third[:MIB], 5) and holds(third[-MIB:], 5)
        try:
            block(300 * MIB)
            raise AssertionError("memory of a pool without use_on_oom was given out")
        except torch.cuda.OutOfMemoryError:
            pass
        del third
    del idle, kept


@feature
@since(2, 10)
def mempool_no_split():
    """Where segments are not split, each holds one block."""
    pool = torch.cuda.MemPool(no_split=True)
    with torch.cuda.use_mem_pool(pool):
        tensor = block(32 * MIB)
        del tensor
        tensors = [block(4 * MIB, i) for i in range(4)]
    segments = pool_of(pool)
    assert all(len(s["blocks"]) == 1 for s in segments), [len(s["blocks"]) for s in segments]
    assert len(segments) == 4
    assert all(holds(tensor, i) for i, tensor in enumerate(tensors))


@feature
@since(2, 13)
def mempool_statistics():
    """Each pool has figures of its own, which outlive it."""

    def figures():
        return {key: value for key, value in torch.cuda.memory_stats().items() if key.startswith(prefix)}

    pool = torch.cuda.MemPool()
    prefix = f"reserved_bytes_by_private_pools.{pool.id[0]}_{pool.id[1]}."
    with torch.cuda.use_mem_pool(pool):
        tensor = block(32 * MIB)
    held = sum(s["total_size"] for s in pool_of(pool))
    now = figures()
    assert now[prefix + "all.current"] == now[prefix + "large_pool.current"] == held >= 32 * MIB, (held, now)
    assert now[prefix + "small_pool.current"] == 0
    del tensor, pool
    settle()
    now = figures()
    assert now[prefix + "all.current"] == 0 and now[prefix + "all.peak"] == held == now[prefix + "all.freed"], now
    torch.cuda.reset_peak_memory_stats()
    assert figures()[prefix + "all.peak"] == 0


@feature
def mempool_record_stream():
    """Outside of a capture, a pool's block serves again once the other stream's work is done."""
    pool, side, places = torch.cuda.MemPool(), torch.cuda.Stream(), set()
    for _ in range(4):
        with torch.cuda.use_mem_pool(pool):
            tensor = block(32 * MIB)
            tensor.record_stream(side)
            places.add(tensor.data_ptr())
            del tensor
        torch.cuda.synchronize()
    assert len(places) <= 2, places


@feature
def mempool_own_allocator():
    """A pool over functions of the program: they serve it, and nothing else."""
    allocator, counts = counted()
    begin = counts()
    pool = torch.cuda.MemPool(allocator.allocator())
    outside = block(64 * MIB, 1)
    assert counts() == begin
    with torch.cuda.use_mem_pool(pool):
        tensor = block(64 * MIB, 2)
    assert counts()[0] > begin[0]
    assert holds(tensor, 2) and holds(outside, 1) and within(tensor.data_ptr(), pool_of(pool))


@feature
def mempool_own_allocator_gets_its_memory_back():
    allocator, counts = counted()
    begin = counts()
    pool = torch.cuda.MemPool(allocator.allocator())
    with torch.cuda.use_mem_pool(pool):
        tensor = block(64 * MIB)
    assert counts()[0] > begin[0] and within(tensor.data_ptr(), pool_of(pool))
    del tensor, pool
    settle()
    end = counts()
    assert end[0] - begin[0] == end[1] - begin[1], f"{begin} before, {end} after"
