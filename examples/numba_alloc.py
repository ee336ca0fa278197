# SPDX-License-Identifier: MIT
"""numba_alloc.py: runs a Numba kernel on memory from weir.

    PYTHONPATH=.../share/weir/python python3 numba_alloc.py
"""

import numpy
from numba import cuda
import weir_cuda.numba

cuda.set_memory_manager(weir_cuda.numba.WeirManager)  # must be called before the first use of the GPU


@cuda.jit
def scale(out, values, factor):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = values[i] * factor


for size in range(1000, 100000, 4999):
    values = numpy.arange(size, dtype=numpy.float32)
    out = cuda.device_array(size, dtype=numpy.float32)
    scale[(size + 255) // 256, 256](out, cuda.to_device(values), 3)
    assert (out.copy_to_host() == values * 3).all()

figures = weir_cuda.stats(0)
print(f"weir served {figures.allocs} requests of Numba's, {figures.blocks} blocks are live, "
      f"{cuda.current_context().get_memory_info().free >> 20} MiB free")
assert figures.allocs >= 40 and figures.frees > 0
