# SPDX-License-Identifier: MIT
"""weir_numba: weir as Numba's External Memory Manager.

    NUMBA_CUDA_MEMORY_MANAGER=weir_numba python3 program.py
    or, before the first use of a GPU:  numba.cuda.set_memory_manager(weir_numba.WeirManager)

Numba names no stream, so arrays are for any: a free waits for the device, as Numba's own cuMemFree does
(weir_alloc_any, weir_free_any).  Host memory stays Numba's.  There are no IPC handles.
"""

import ctypes
import weakref

from numba.cuda import HostOnlyCUDAMemoryManager, MemoryInfo, MemoryPointer
import weir_ctypes


class WeirManager(HostOnlyCUDAMemoryManager):
    def initialize(self):
        super().initialize()
        self.weir = weir_ctypes.Allocator(self.context.device.id)
        self.live = set()

    def memalloc(self, size):
        weir, live = self.weir, self.live
        address = weir.alloc(size)
        live.add(address)

        def finalizer():
            if address in live:  # a reset has given it back
                live.remove(address)
                weir.free(address)

        return MemoryPointer(weakref.proxy(self.context), ctypes.c_void_p(address), size,
                             finalizer=finalizer)

    def reset(self):
        while self.live:
            self.weir.free(self.live.pop())
        super().reset()

    def get_memory_info(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        cuda = ctypes.CDLL("libcuda.so.1")
        if cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) != 0:
            raise RuntimeError("the driver does not tell the device's memory")
        return MemoryInfo(free=free.value, total=total.value)

    def get_ipc_handle(self, memory):
        raise NotImplementedError("memory of weir's is not shared with other processes")

    @property
    def interface_version(self):
        return 1


_numba_memory_manager = WeirManager
