# SPDX-License-Identifier: MIT
"""JAX: trains on all devices from one process, with about 7 GB live on each device.

The batch is split among the devices, and each device has all weights.  XLA adds up the gradients with NCCL.  The
program does not change JAX's settings for memory."""

import common

LAYERS, WIDTH, BATCH = 8, 8192, 1024


def main():
    options = common.arguments(60)
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
    split, whole = NamedSharding(mesh, PartitionSpec("batch")), NamedSharding(mesh, PartitionSpec())

    def loss(weights, x):
        for w in weights:
            x = jnp.tanh(x @ w)
        return jnp.mean(x * x)

    def update(weights, momentum, x):
        value, gradients = jax.value_and_grad(loss)(weights, x)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
        return value, jax.tree.map(lambda w, m: w - 0.01 * m, weights, momentum), momentum

    keys = jax.random.split(jax.random.PRNGKey(0), LAYERS + 1)
    state = [jax.device_put(jax.random.normal(k, (WIDTH, WIDTH), jnp.float32) / WIDTH**0.5, whole) for k in keys[1:]]
    momentum = [jnp.zeros_like(w) for w in state]
    x = jax.device_put(jax.random.normal(keys[0], (BATCH * len(devices), WIDTH), jnp.float32), split)
    jax.block_until_ready((state, momentum, x))
    device = common.Device(len(devices) - 1)
    step = jax.jit(update, donate_argnums=(0, 1)).lower(state, momentum, x).compile()
    last = [0.0]

    def iterate(_):
        nonlocal state, momentum
        value, state, momentum = step(state, momentum, x)
        last[0] = float(value)

    times = common.measure(iterate, options.iterations, device)
    figures = devices[-1].memory_stats() or {}
    common.report("jax-sharded", times, device, figures.get("peak_bytes_in_use"), last[0],
                  devices=len(devices), version=jax.__version__)


main()
