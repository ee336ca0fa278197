# SPDX-License-Identifier: MIT
"""CuPy: measures the time of an allocation in a program of small arrays with many temporaries.  The GPU always waits
for the host.

Two kinds of iterations alternate.  One kind uses the allocator.  The other kind uses memory that costs nothing: pieces
of one block.  The difference of their times, divided by the number of allocations, is the time that an allocation and
its free add to the program.  Most of this time is spent on CuPy's own objects.

The program also measures the pool's two calls without these objects, in two ways: in the program, with a clock around
each call, in separate iterations; and in a loop that makes nothing but these calls.  The process stays on one
processor, because on a virtual machine one process in three otherwise ran at half speed."""

import os
import random
import statistics
import time

import common
from cupy_common import KINDS, choose

PIECE, PIECES = 1 << 20, 512


class Counting:
    """Passes requests on to an allocator, and counts them."""

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


class Timed:
    """Measures the two calls of the pool with a clock, as an allocator for cupy.cuda.PythonFunctionAllocator."""

    def __init__(self, cupy):
        self.runtime, self.stream = cupy.cuda.runtime, cupy.cuda.get_current_stream().ptr
        self.took = []

    def malloc(self, size, _):
        start = time.perf_counter_ns()
        pointer = self.runtime.mallocAsync(size, self.stream)
        self.took.append(time.perf_counter_ns() - start)
        return pointer

    def free(self, pointer, _):
        start = time.perf_counter_ns()
        self.runtime.freeAsync(pointer, self.stream)
        self.took.append(time.perf_counter_ns() - start)

    def pair_ns(self):
        """Returns the mean time of an allocation and its free in ns.

        Uses the second half of the pairs, without the slowest hundredth, and subtracts the cost of the clock."""
        empty = []
        for _ in range(10000):
            start = time.perf_counter_ns()
            empty.append(time.perf_counter_ns() - start)
        half = sorted(self.took[len(self.took) // 2:])
        return 2 * (statistics.mean(half[:len(half) * 99 // 100]) - statistics.median(empty))


def calls_ns(cupy, turns=2000, live=8):
    """Returns the time in ns of two calls of CUDA's pool on an idle device: a free of the oldest block, and a
    request."""
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
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    import cupy

    choose(cupy, options.allocator)
    real = Counting(cupy.cuda.get_allocator())
    free_of_cost = Counting(pieces_of_one_block(cupy))
    timed = Timed(cupy)
    kinds = [real, free_of_cost]
    if options.allocator == "async":
        kinds.append(cupy.cuda.PythonFunctionAllocator(timed.malloc, timed.free).malloc)
    total = cupy.arange(1 << 16, dtype=cupy.float32) / (1 << 16)
    sizes, last = random.Random(0), [0.0]
    device = common.Device()

    def iterate(i):
        cupy.cuda.set_allocator(kinds[i % len(kinds)])
        for _ in range(40):
            a = total[:sizes.randint(1 << 12, 1 << 16)]
            b = cupy.sqrt(a * a + 2 * a + 1) - cupy.sin(a) * cupy.cos(a)
            c = cupy.where(b > 0, b * b, -b) + cupy.exp(-abs(b))
            d = c + a
        last[0] = float(d.sum())

    times = common.measure(iterate, options.iterations, device)
    half = options.iterations // 2 // len(kinds) * len(kinds)
    costs = [statistics.median(times[half + kind::len(kinds)]) for kind in (0, 1)]
    allocations = real.count / len(times[::len(kinds)])
    is_async = options.allocator == "async"
    common.report("cupy-allocs", times[::len(kinds)], device, None, last[0], version=cupy.__version__,
                  allocations=allocations, per_allocation_ns=(costs[0] - costs[1]) * 1e6 / allocations,
                  calls_in_program_ns=timed.pair_ns() if is_async else None,
                  calls_ns=calls_ns(cupy) if is_async else None)


main()
