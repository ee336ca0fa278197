# SPDX-License-Identifier: MIT
"""Copies a NumPy array of 1 MB to the GPU once, for a compiled function.  doc/jax.md shows its memory."""

import jax
import numpy


@jax.jit
def double(x):
    return x * 2


x = numpy.arange(1 << 18, dtype=numpy.float32)  # 1 MiB
on_gpu = jax.device_put(x)
for _ in range(3):
    y = double(on_gpu)
assert numpy.array_equal(numpy.asarray(y), x * 2)
print(jax.local_devices()[0].memory_stats())
