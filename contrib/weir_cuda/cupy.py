# SPDX-License-Identifier: MIT
"""weir_cuda.cupy: weir as CuPy's allocator, in three ways.

    cupy.cuda.set_allocator(weir_cuda.cupy.current_stream())

current_stream()    in the order of CuPy's current stream, at the request and at the free; through Python, a
                    microsecond or two a call.  CuPy's own default is like it: arrays used on another stream
                    must be kept until that is done.  A failure raises CuPy's OutOfMemoryError with weir's OOM report.
one_stream(stream)  in C, for programs that use one stream; 0x1 is the legacy default stream.
any_stream()        in C, right in every program, but each free waits for the device: best below CuPy's pool,
                    cupy.cuda.MemoryPool(weir_cuda.cupy.any_stream()).malloc
"""

from __future__ import annotations

import ctypes
from typing import Any

import cupy

from . import _library
from ._allocator import Allocator, Error, OutOfMemoryError
from ._library import Statistics

_allocators: dict[int, Allocator] = {}


def _of(device: int) -> Allocator:
    if device not in _allocators:
        _allocators[device] = Allocator(device)
    return _allocators[device]


def _handle() -> int:
    return cupy.cuda.get_current_stream().ptr or 0x1  # 0: the legacy default stream


def current_stream() -> Any:
    streams: dict[int, int] = {}  # a block goes back on the stream that it was for

    def malloc(size: int, device: int) -> int:
        stream = _handle()
        try:
            block = _of(device).alloc(size, stream)
        except OutOfMemoryError as error:
            failure = cupy.cuda.memory.OutOfMemoryError(size, _of(device).stats().in_use)
            failure.args = (f"{failure}\n{error.text}",)
            raise failure from error
        streams[block] = stream
        return block

    def free(block: int, device: int) -> None:
        stream, now = streams.pop(block), _handle()
        try:
            if stream != now:  # which the array may have been used on
                _of(device).use(block, now)
            _of(device).free(block, stream)
        except Error:  # a stream has ended: what it was given may still run
            _of(device).free(block)

    return cupy.cuda.PythonFunctionAllocator(malloc, free).malloc


def _in_c(param: int) -> Any:
    module = _library.adapters()
    malloc = ctypes.cast(module.weir_cupy_malloc, ctypes.c_void_p).value
    free = ctypes.cast(module.weir_cupy_free, ctypes.c_void_p).value
    return cupy.cuda.CFunctionAllocator(param, malloc, free, module).malloc


def one_stream(stream: Any = 0x1) -> Any:
    return _in_c(getattr(stream, "ptr", stream) or 0x1)


def any_stream() -> Any:
    return _in_c(0)


def stats(device: int = 0) -> Statistics:
    return _of(device).stats()
