# SPDX-License-Identifier: MIT
"""cupy_common.py: chooses the allocator, for all CuPy programs of this folder."""

KINDS = "pool: CuPy's own; async: CUDA's pool; none: cudaMalloc for each array"


def choose(cupy, kind):
    if kind == "async":
        pool = cupy.cuda.MemoryAsyncPool()
        cupy.cuda.set_allocator(pool.malloc)
    elif kind == "none":
        cupy.cuda.set_allocator(None)
