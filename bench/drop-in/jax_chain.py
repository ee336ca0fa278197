# SPDX-License-Identifier: MIT
"""JAX: computes the gradient of a chain of 12 matrix products, compiled ahead of time, with about 9 GB live."""

import common
import jax_common


def main():
    options = common.arguments(24)
    import jax

    loss, weights, x = jax_common.chain(5120)
    device = common.Device()
    step = jax.jit(jax.value_and_grad(loss)).lower(weights, x).compile()
    last = [0.0]

    def iterate(_):
        value, gradients = step(weights, x)
        jax.block_until_ready(gradients)
        last[0] = float(value)

    times = common.measure(iterate, options.iterations, device)
    jax_common.report("jax-chain", times, device, last[0])


main()
