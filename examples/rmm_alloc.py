# SPDX-License-Identifier: MIT
"""rmm_alloc.py: uses weir as RMM's memory resource, in two ways: as a CUDA pool, and by weir's own functions.

    PYTHONPATH=.../share/weir/python WEIR_PREALLOC=1GiB python3 rmm_alloc.py
"""

import rmm
import weir_cuda.rmm

rmm.mr.set_current_device_resource(weir_cuda.rmm.pool_resource())
weir = weir_cuda.Allocator(0)
weir.free(weir.alloc(1))  # the first request preallocates memory, if WEIR_PREALLOC is set
reserve = weir.stats().reserved
buffers = [rmm.DeviceBuffer(size=1 << 20) for _ in range(50)]
print(f"50 MiB from weir's pool: its reserve was {reserve >> 20} MiB and is {weir.stats().reserved >> 20} MiB")
assert weir.stats().reserved >= 50 << 20
del buffers

rmm.mr.set_current_device_resource(rmm.mr.PoolMemoryResource(weir_cuda.rmm.callback_resource(), 64 << 20))
before = weir.stats().allocs
buffers = [rmm.DeviceBuffer(size=3 << 20) for _ in range(50)]
print(f"150 MiB by RMM's pool above weir: weir served {weir.stats().blocks} blocks")
assert weir.stats().in_use >= 150 << 20
del buffers
