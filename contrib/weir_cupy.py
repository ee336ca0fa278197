# SPDX-License-Identifier: MIT
"""weir_cupy: weir as CuPy's allocator, in three ways.

    cupy.cuda.set_allocator(weir_cupy.current_stream())

current_stream()    in the order of CuPy's current stream, at the request and at the free; through Python, a
                    microsecond or two a call.  CuPy's own default is like it: arrays used on another stream
                    must be kept until that is done.  A refusal raises OutOfMemoryError.
one_stream(stream)  in C, for programs that use one stream; 0x1 is the legacy default stream.
any_stream()        in C, right in every program, but each free waits for the device: best below CuPy's pool,
                    cupy.cuda.MemoryPool(weir_cupy.any_stream()).malloc
"""

import ctypes

import cupy
import weir_ctypes

_allocators = {}


def _of(device):
    if device not in _allocators:
        _allocators[device] = weir_ctypes.Allocator(device)
    return _allocators[device]


def _handle():
    return cupy.cuda.get_current_stream().ptr or 0x1  # 0: the legacy default stream


def current_stream():
    streams = {}  # a block goes back on the stream that it was for

    def malloc(size, device):
        stream = _handle()
        try:
            block = _of(device).alloc(size, stream)
        except weir_ctypes.OutOfMemory as error:
            raise cupy.cuda.memory.OutOfMemoryError(size, _of(device).stats().in_use) from error
        streams[block] = stream
        return block

    def free(block, device):
        stream, now = streams.pop(block), _handle()
        try:
            if stream != now:  # which the array may have been used on
                _of(device).use(block, now)
            _of(device).free(block, stream)
        except weir_ctypes.Error:  # a stream has ended: what it was given may still run
            _of(device).free(block)

    return cupy.cuda.PythonFunctionAllocator(malloc, free).malloc


def _in_c(param):
    module = weir_ctypes.adapters()
    malloc = ctypes.cast(module.weir_cupy_malloc, ctypes.c_void_p).value
    free = ctypes.cast(module.weir_cupy_free, ctypes.c_void_p).value
    return cupy.cuda.CFunctionAllocator(param, malloc, free, module).malloc


def one_stream(stream=0x1):
    return _in_c(getattr(stream, "ptr", stream) or 0x1)


def any_stream():
    return _in_c(0)


def stats(device=0):
    return _of(device).stats()
