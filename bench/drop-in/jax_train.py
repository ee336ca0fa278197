# SPDX-License-Identifier: MIT
"""JAX: trains a model of 12 layers with momentum and a donated state, with about 10 GB live."""

import common
import jax_common


def main():
    options = common.arguments(150)
    import jax
    import jax.numpy as jnp

    loss, state, x = jax_common.chain(1024)
    momentum = jax.block_until_ready([jnp.zeros_like(w) for w in state])

    def update(weights, momentum, x):
        value, gradients = jax.value_and_grad(loss)(weights, x)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
        return value, jax.tree.map(lambda w, m: w - 0.01 * m, weights, momentum), momentum

    device = common.Device()
    step = jax.jit(update, donate_argnums=(0, 1)).lower(state, momentum, x).compile()
    last = [0.0]

    def iterate(_):
        nonlocal state, momentum
        value, state, momentum = step(state, momentum, x)
        last[0] = float(value)

    times = common.measure(iterate, options.iterations, device)
    jax_common.report("jax-train", times, device, last[0])


main()
