# SPDX-License-Identifier: MIT
"""JAX: waits for a line of input, then allocates and fills one array of some GiB.  Prints how long this took, in ms."""

import sys
import time

import common


def main():
    options = common.arguments(1, gib=(60, "of the array"))
    import jax
    import jax.numpy as jnp

    fill = jax.jit(lambda: jnp.full((options.gib, 1 << 28), 1.0, jnp.float32)).lower().compile()
    jax.block_until_ready(jnp.zeros(1 << 20))
    print("ready", flush=True)
    sys.stdin.readline()
    start = time.perf_counter()
    array = jax.block_until_ready(fill())
    print(f"{(time.perf_counter() - start) * 1e3:.1f}", flush=True)
    assert float(array[-1, -1]) == 1.0


main()
