# SPDX-License-Identifier: MIT
"""Copies a NumPy array of 1 MB to the GPU, doubles it there, and copies it back.  doc/jax.md shows its memory."""

import jax
import jax.numpy as jnp
import numpy

x = numpy.arange(1 << 18, dtype=numpy.float32)  # 1 MiB
y = jnp.array(x) * 2
assert numpy.array_equal(numpy.asarray(y), x * 2)
print(jax.local_devices()[0].memory_stats())
