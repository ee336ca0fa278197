# SPDX-License-Identifier: MIT
"""cupy_alloc.py: uses weir as the allocator of CuPy, in three ways.

    PYTHONPATH=.../share/weir/python python3 cupy_alloc.py
"""

import cupy
import weir_cuda.cupy

stream = cupy.cuda.Stream(non_blocking=True)
ways = {
    "the current stream": weir_cuda.cupy.current_stream(),
    "one stream": weir_cuda.cupy.one_stream(stream),
    "any stream, below CuPy's pool": cupy.cuda.MemoryPool(weir_cuda.cupy.any_stream()).malloc,
    "any stream": weir_cuda.cupy.any_stream(),
}
for name, allocator in ways.items():
    before = weir_cuda.cupy.stats().allocs
    with cupy.cuda.using_allocator(allocator), stream:
        total = 0.0
        for size in range(1000, 200000, 1999):
            vector = cupy.arange(size, dtype=cupy.float64)
            total += float((vector * 2 + 1).sum()) - size * size
        stream.synchronize()
    served = weir_cuda.cupy.stats().allocs - before
    print(f"{name}: {served} requests served by weir")
    assert total == 0 and served > 0
