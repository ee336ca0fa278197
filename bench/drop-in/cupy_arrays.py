# SPDX-License-Identifier: MIT
"""CuPy: computes array expressions with many temporaries of changing sizes."""

import random

import common
from cupy_common import KINDS, choose


def main():
    options = common.arguments(60, allocator=("pool", KINDS))
    import cupy

    choose(cupy, options.allocator)
    sizes = random.Random(0)
    last = [0.0]
    total = cupy.arange(1 << 24, dtype=cupy.float32) / (1 << 24)
    device = common.Device()

    def iterate(_):
        result = 0.0
        for _ in range(20):
            a = total[:sizes.randint(1 << 12, 1 << 24)]
            b = cupy.sqrt(a * a + 2 * a + 1) - cupy.sin(a) * cupy.cos(a)
            c = (b - b.mean()) / (b.std() + 1e-6)
            d = cupy.where(c > 0, c * c, -c) + cupy.exp(-abs(c))
            result += float(d.sum() / d.size)
        cupy.cuda.Device().synchronize()
        last[0] = result

    times = common.measure(iterate, options.iterations, device)
    held = cupy.get_default_memory_pool().total_bytes() if options.allocator == "pool" else None
    common.report("cupy-arrays", times, device, held, last[0], version=cupy.__version__)


main()
