# SPDX-License-Identifier: MIT
"""CuPy: allocates arrays with malloc_async and counts them.  A test compares the count with that of `weir record'.

Prints one line of JSON with the numbers of allocations and frees."""

import gc
import json

import cupy

STEPS = 2000


def main():
    count = [0]

    def counted(size):
        count[0] += size > 0  # a request of 0 bytes makes no driver call
        return cupy.cuda.malloc_async(size)

    cupy.cuda.set_allocator(counted)
    kept = []
    for i in range(STEPS):
        kept.append(cupy.arange(1000 + 37 * i % 5000, dtype=cupy.float32) * 2)
        if len(kept) > 16:
            kept.pop(i % 16)
    kept.clear()
    gc.collect()
    cupy.cuda.Device().synchronize()
    print(json.dumps({"allocs": count[0], "frees": count[0]}), flush=True)


main()
