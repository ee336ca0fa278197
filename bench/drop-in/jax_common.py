# SPDX-License-Identifier: MIT
"""jax_common.py: a chain of 12 matrix products, and a report with JAX's own figures of its memory.

The programs do not change JAX's settings for memory."""

import common

LAYERS, WIDTH = 12, 8192


def chain(batch):
    """Returns three things: a function that computes the loss of the chain from weights and input, the weights, and the
    input."""
    import jax
    import jax.numpy as jnp

    def loss(weights, x):
        for w in weights:
            x = jnp.tanh(x @ w)
        return jnp.mean(x * x)

    keys = jax.random.split(jax.random.PRNGKey(0), LAYERS + 1)
    weights = [jax.random.normal(k, (WIDTH, WIDTH), jnp.float32) / WIDTH**0.5 for k in keys[1:]]
    x = jax.random.normal(keys[0], (batch, WIDTH), jnp.float32)
    jax.block_until_ready((weights, x))
    return loss, weights, x


def report(name, times, device, value):
    import jax

    figures = jax.local_devices()[0].memory_stats() or {}
    common.report(name, times, device, figures.get("peak_bytes_in_use"), value, version=jax.__version__,
                  allocations=figures.get("num_allocs"))
