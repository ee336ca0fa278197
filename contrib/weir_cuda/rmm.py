# SPDX-License-Identifier: MIT
"""weir_cuda.rmm: weir below RMM (cuDF, cuML, ...), in two ways.

    rmm.mr.set_current_device_resource(weir_cuda.rmm.pool_resource())

pool_resource()      RMM allocates from weir's CUDA pool itself: no call of Python, served by the driver; preallocation,
                     growth and limit are weir's.  The pool engine only, which this asks for where the environment
                     names none: so it comes before anything else that has the process use weir.
callback_resource()  every request and free is weir's, in the order of RMM's stream, through Python: a few
                     microseconds a call, so best below a pool of RMM's.  A failure is std::bad_alloc, a MemoryError.
                     A free with another size than was asked for is done, and the first is told on standard error.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import rmm

from ._allocator import Allocator


def pool_resource(device: int = 0) -> Any:
    from cuda.bindings import driver

    is_open = "WEIR_ENGINE" not in os.environ
    if is_open:
        os.environ["WEIR_ENGINE"] = "pool"
    try:
        pool = Allocator(device).pool()
    finally:
        if is_open:  # it is read once; a child is to choose for itself
            del os.environ["WEIR_ENGINE"]
    return rmm.mr.CudaAsyncViewMemoryResource(driver.CUmemoryPool(init_value=pool))


def _handle(stream: Any) -> int | None:
    """None where RMM does not tell: then the block is for any stream."""
    ask = getattr(stream, "__cuda_stream__", None)
    return ask()[1] or 0x1 if ask else None


def callback_resource(device: int = 0) -> Any:
    weir = Allocator(device)
    sizes: dict[int, int] = {}
    told: list[int] = []

    def allocate(size: int, stream: Any) -> int:
        block = weir.alloc(size, _handle(stream))
        sizes[block] = size
        return block

    def deallocate(block: int, size: int, stream: Any) -> None:
        asked = sizes.pop(block, size)  # before another has the block
        weir.free(block, _handle(stream))
        if size != asked and not told:  # RMM has no answer to an error here
            told.append(block)
            print(f"weir: error: weir_cuda.rmm: free of {block:#x} with {size} bytes, which was asked for with {asked} "
                  "(of more like it nothing is told)", file=sys.stderr)

    return rmm.mr.CallbackMemoryResource(allocate, deallocate)
