# SPDX-License-Identifier: MIT
"""weir_ctypes: what Python needs of libweir, over ctypes.

Found beside this file, where `make install` puts it, or where the dynamic linker looks (LD_LIBRARY_PATH).  The
allocator of a device is the process's (weir_device_allocator), so that what is read here is what a framework in the
same process uses.  Contracts: weir/allocator.h, weir/stats.h.
"""

import ctypes
import glob
import os

_HERE = os.path.dirname(os.path.abspath(__file__))

# In the order of weir_statistics.
_FIGURES = """attempts allocs frees hits growth_allocs refusals retries growths growth_bytes stall_ns trims
    trim_bytes blocks requested requested_peak in_use in_use_peak reserve reserve_peak extent prealloc_asked
    prealloc_got prealloc_kept prealloc_ns host_bytes front_hits front_misses_young front_misses_empty
    front_misses_capture steals event_records deferred_frees front_idle front_streams late_writes overruns
    kept_out ahead_steps ahead_bytes ahead_ns ahead_refusals prealloc_pending prealloc_waited_ns profile_asked
    profile_runs appeals appeal_bytes yields yield_bytes""".split()

NO_MEMORY, LIMIT, DEVICE_LOST, NOT_SUPPORTED = -2, -4, -7, -14
BYTES, OF_TOTAL, MAX = 1, 2, 4


class Statistics(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t)] + [(name, ctypes.c_uint64) for name in _FIGURES]


class Amount(ctypes.Structure):
    _fields_ = [("value", ctypes.c_uint64), ("kind", ctypes.c_int), ("reserved", ctypes.c_int)]


class Error(RuntimeError):
    def __init__(self, what, status, advice=""):
        super().__init__(f"weir: {what}: {library.weir_status_message(status).decode()}{advice}")
        self.status = status


class OutOfMemory(Error, MemoryError):
    pass


def _open(name, *folders):
    for folder in folders:
        for path in sorted(glob.glob(os.path.join(_HERE, folder, name))):
            return ctypes.CDLL(path)
    return ctypes.CDLL(name)


# The library first: the module needs it, and finds what is there already.
library = _open("libweir.so.0", ".", "../../../lib", "../../../lib64", "../../../lib/*")


def adapters():
    """libweir-adapters.so; its path is in _name, for frameworks that open it themselves."""
    return _open("libweir-adapters.so", ".", "../../../lib/weir", "../../../lib64/weir", "../../../lib/*/weir")


def _declare(name, *types, result=ctypes.c_int):
    function = getattr(library, name)
    function.argtypes, function.restype = types, result


_pointer, _out = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
_declare("weir_status_message", ctypes.c_int, result=ctypes.c_char_p)
_declare("weir_version", result=ctypes.c_char_p)
_declare("weir_device_allocator", ctypes.c_int, _out)
_declare("weir_alloc", _pointer, ctypes.c_size_t, _pointer, _out)
_declare("weir_free", _pointer, _pointer, _pointer)
_declare("weir_alloc_any", _pointer, ctypes.c_size_t, _out)
_declare("weir_free_any", _pointer, _pointer)
_declare("weir_use", _pointer, _pointer, _pointer)
_declare("weir_set_limit", _pointer, Amount)
_declare("weir_trim", _pointer, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t))
_declare("weir_pool", _pointer, _out)
_declare("weir_stats", _pointer, ctypes.POINTER(Statistics))


def check(what, status):
    if status:
        raise (OutOfMemory if status in (NO_MEMORY, LIMIT) else Error)(what, status)


class Allocator:
    """The process's allocator of a device.  Streams are handles as numbers; None: any stream (weir_alloc_any)."""

    def __init__(self, device=0):
        handle = ctypes.c_void_p()
        check(f"device {device}", library.weir_device_allocator(device, ctypes.byref(handle)))
        self.handle = handle

    def alloc(self, size, stream=None):
        block = ctypes.c_void_p()
        out = ctypes.byref(block)
        check(f"{size} bytes", library.weir_alloc_any(self.handle, size, out) if stream is None else
              library.weir_alloc(self.handle, size, stream, out))
        return block.value or 0

    def free(self, block, stream=None):
        status = (library.weir_free_any(self.handle, block) if stream is None else
                  library.weir_free(self.handle, block, stream))
        if status != DEVICE_LOST:  # as it is when the process ends: there is nothing to give back to
            check(f"free of {block:#x}", status)

    def use(self, block, stream):
        check(f"use of {block:#x}", library.weir_use(self.handle, block, stream))

    def set_limit(self, size=None):
        amount = Amount(0, MAX, 0) if size is None else Amount(size, BYTES, 0)
        check(f"limit {size}", library.weir_set_limit(self.handle, amount))

    def trim(self, keep=0):
        released = ctypes.c_size_t()
        check("trim", library.weir_trim(self.handle, keep, ctypes.byref(released)))
        return released.value

    def pool(self):
        """The CUDA memory pool, of the pool engine alone."""
        pool = ctypes.c_void_p()
        status = library.weir_pool(self.handle, ctypes.byref(pool))
        if status == NOT_SUPPORTED:
            raise Error("pool", status, ": only the pool engine has one (WEIR_ENGINE=pool, before the first use of weir)")
        check("pool", status)
        return pool.value

    def stats(self):
        figures = Statistics(size=ctypes.sizeof(Statistics))
        check("statistics", library.weir_stats(self.handle, ctypes.byref(figures)))
        return figures
