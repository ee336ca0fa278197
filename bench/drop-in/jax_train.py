# SPDX-License-Identifier: MIT
"""JAX: training of 12 layers with momentum, its state donated; about 10 GB live.  Settings of JAX's memory as they are."""

import common

LAYERS, WIDTH, BATCH = 12, 8192, 1024


def main():
    options = common.arguments(150)
    import jax
    import jax.numpy as jnp

    def loss(weights, x):
        for w in weights:
            x = jnp.tanh(x @ w)
        return jnp.mean(x * x)

    def update(weights, momentum, x):
        value, gradients = jax.value_and_grad(loss)(weights, x)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
        return value, jax.tree.map(lambda w, m: w - 0.01 * m, weights, momentum), momentum

    keys = jax.random.split(jax.random.PRNGKey(0), LAYERS + 1)
    state = [jax.random.normal(k, (WIDTH, WIDTH), jnp.float32) / WIDTH**0.5 for k in keys[1:]]
    momentum = [jnp.zeros_like(w) for w in state]
    x = jax.random.normal(keys[0], (BATCH, WIDTH), jnp.float32)
    jax.block_until_ready((state, momentum, x))
    device = common.Device()
    step = jax.jit(update, donate_argnums=(0, 1)).lower(state, momentum, x).compile()
    last = [0.0]

    def iterate(_):
        nonlocal state, momentum
        value, state, momentum = step(state, momentum, x)
        last[0] = float(value)

    times = common.measure(iterate, options.iterations, device)
    figures = jax.local_devices()[0].memory_stats() or {}
    common.report("jax-train", times, device, figures.get("peak_bytes_in_use"), last[0], version=jax.__version__)


main()
