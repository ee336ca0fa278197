# SPDX-License-Identifier: MIT
"""CuPy: what an allocation costs in a program of small arrays with many temporaries, where the host is what is
waited for.  Iterations take turns: one with the allocator, one with memory that costs nothing, pieces of one block
in turn; the difference, by the number of allocations, is what allocating and freeing adds to the program, most of
it CuPy's own objects.  Beside it, what the pool's two calls take as CuPy makes them, without those."""

import random
import statistics
import time

import common
from cupy_common import KINDS, choose

PIECE, PIECES = 1 << 20, 512


class Counting:
    """Hands on to the allocator that it is made with, and counts."""

    def __init__(self, allocate):
        self.allocate, self.count = allocate, 0

    def __call__(self, size):
        self.count += 1
        return self.allocate(size)


def pieces_of_one_block(cupy):
    memory = cupy.cuda.memory
    block = memory.alloc(PIECE * PIECES)
    turn = [0]

    def allocate(size):
        turn[0] = (turn[0] + 1) % PIECES
        return memory.MemoryPointer(memory.UnownedMemory(block.ptr + turn[0] * PIECE, size, None, 0), 0)

    return allocate


def calls_ns(cupy, turns=2000, live=8):
    """A pair of calls of the async pool, the oldest of a few blocks freed first; the device has nothing to do."""
    runtime, stream = cupy.cuda.runtime, cupy.cuda.get_current_stream().ptr
    cupy.cuda.get_current_stream().synchronize()
    rounds = []
    for _ in range(9):
        blocks = [runtime.mallocAsync(1 << 17, stream) for _ in range(live)]
        start = time.perf_counter_ns()
        for i in range(turns):
            runtime.freeAsync(blocks[i % live], stream)
            blocks[i % live] = runtime.mallocAsync(1 << 17, stream)
        rounds.append((time.perf_counter_ns() - start) / turns)
        for block in blocks:
            runtime.freeAsync(block, stream)
    return statistics.median(rounds)


def main():
    options = common.arguments(400, allocator=("async", KINDS))
    import cupy

    choose(cupy, options.allocator)
    real = Counting(cupy.cuda.get_allocator())
    free_of_cost = Counting(pieces_of_one_block(cupy))
    total = cupy.arange(1 << 16, dtype=cupy.float32) / (1 << 16)
    sizes, last = random.Random(0), [0.0]
    device = common.Device()

    def iterate(i):
        cupy.cuda.set_allocator(free_of_cost if i % 2 else real)
        for _ in range(40):
            a = total[:sizes.randint(1 << 12, 1 << 16)]
            b = cupy.sqrt(a * a + 2 * a + 1) - cupy.sin(a) * cupy.cos(a)
            c = cupy.where(b > 0, b * b, -b) + cupy.exp(-abs(b))
            d = c + a
        last[0] = float(d.sum())

    times = common.measure(iterate, options.iterations, device)
    half = options.iterations // 2
    costs = [statistics.median(times[half + kind::2]) for kind in (0, 1)]
    allocations = real.count / ((options.iterations + 1) // 2)
    common.report("cupy-allocs", times[::2], device, None, last[0], version=cupy.__version__,
                  allocations=allocations, per_allocation_ns=(costs[0] - costs[1]) * 1e6 / allocations,
                  calls_ns=calls_ns(cupy) if options.allocator == "async" else None)


main()
