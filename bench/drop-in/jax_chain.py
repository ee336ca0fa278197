# SPDX-License-Identifier: MIT
"""JAX: the gradient of a chain of 12 matrix products, compiled ahead of time; about 9 GB live."""

import common

LAYERS, WIDTH, BATCH = 12, 8192, 5120


def main():
    options = common.arguments(24)
    import jax
    import jax.numpy as jnp

    def loss(weights, x):
        for w in weights:
            x = jnp.tanh(x @ w)
        return jnp.mean(x * x)

    keys = jax.random.split(jax.random.PRNGKey(0), LAYERS + 1)
    weights = [jax.random.normal(k, (WIDTH, WIDTH), jnp.float32) / WIDTH**0.5 for k in keys[1:]]
    x = jax.random.normal(keys[0], (BATCH, WIDTH), jnp.float32)
    jax.block_until_ready((weights, x))
    device = common.Device()
    step = jax.jit(jax.value_and_grad(loss)).lower(weights, x).compile()
    last = [0.0]

    def iterate(_):
        value, gradients = step(weights, x)
        jax.block_until_ready(gradients)
        last[0] = float(value)

    times = common.measure(iterate, options.iterations, device)
    figures = jax.local_devices()[0].memory_stats() or {}
    common.report("jax-chain", times, device, figures.get("peak_bytes_in_use"), last[0],
                  version=jax.__version__, allocations=figures.get("num_allocs"))


main()
