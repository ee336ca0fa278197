# SPDX-License-Identifier: MIT
"""Passes a NumPy array of 1 MB to a compiled function.  doc/jax.md shows its memory."""

import jax
import numpy


@jax.jit
def double(x):
    return x * 2


x = numpy.arange(1 << 18, dtype=numpy.float32)  # 1 MiB
y = double(x)
assert numpy.array_equal(numpy.asarray(y), x * 2)
print(jax.local_devices()[0].memory_stats())
