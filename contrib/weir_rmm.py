# SPDX-License-Identifier: MIT
"""weir_rmm: weir below RMM (cuDF, cuML, ...), in two ways.

    rmm.mr.set_current_device_resource(weir_rmm.pool_resource())

pool_resource()      RMM allocates from weir's CUDA pool itself: no call of Python, served by the driver; preallocation,
                     growth and limit are weir's.  The pool engine only, which this asks for where the environment
                     names none: so it comes before anything else that has the process use weir.
callback_resource()  every request and free is weir's, in the order of RMM's stream, through Python: a few
                     microseconds a call, so best below a pool of RMM's.  A refusal is std::bad_alloc, a MemoryError.
                     A free with another size than was asked for is done, and the first is told on standard error.
"""

import os
import sys

import rmm
import weir_ctypes


def pool_resource(device=0):
    from cuda.bindings import driver

    is_open = "WEIR_ENGINE" not in os.environ
    if is_open:
        os.environ["WEIR_ENGINE"] = "pool"
    try:
        pool = weir_ctypes.Allocator(device).pool()
    finally:
        if is_open:  # it is read once; a child is to choose for itself
            del os.environ["WEIR_ENGINE"]
    return rmm.mr.CudaAsyncViewMemoryResource(driver.CUmemoryPool(init_value=pool))


def _handle(stream):
    """None where RMM does not tell: then the block is for any stream."""
    ask = getattr(stream, "__cuda_stream__", None)
    return ask()[1] or 0x1 if ask else None


def callback_resource(device=0):
    weir = weir_ctypes.Allocator(device)
    sizes, told = {}, []

    def allocate(size, stream):
        block = weir.alloc(size, _handle(stream))
        sizes[block] = size
        return block

    def deallocate(block, size, stream):
        asked = sizes.pop(block, size)  # before another has the block
        weir.free(block, _handle(stream))
        if size != asked and not told:  # RMM has no answer to an error here
            told.append(block)
            print(f"weir: error: weir_rmm: free of {block:#x} with {size} bytes, which was asked for with {asked} "
                  "(of more like it nothing is told)", file=sys.stderr)

    return rmm.mr.CallbackMemoryResource(allocate, deallocate)
