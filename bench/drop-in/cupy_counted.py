# SPDX-License-Identifier: MIT
"""CuPy: arrays from malloc_async, counted here, for the count of `weir record' to be compared with.  One line of
JSON: allocations and frees."""

import gc
import json

import cupy

STEPS = 2000


def main():
    count = [0]

    def counted(size):
        count[0] += size > 0  # a request of nothing asks nobody
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
