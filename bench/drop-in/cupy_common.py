# SPDX-License-Identifier: MIT
"""cupy_common.py: the choice of the allocator, which the CuPy programs of this folder share."""

KINDS = "pool: CuPy's own; async: CUDA's pool; none: cudaMalloc for each array"


def choose(cupy, kind):
    if kind == "async":
        pool = cupy.cuda.MemoryAsyncPool()
        cupy.cuda.set_allocator(pool.malloc)
    elif kind == "none":
        cupy.cuda.set_allocator(None)
