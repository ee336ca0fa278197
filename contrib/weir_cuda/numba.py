# SPDX-License-Identifier: MIT
"""weir_cuda.numba: weir as Numba's External Memory Manager.

    NUMBA_CUDA_MEMORY_MANAGER=weir_cuda.numba python3 program.py
    or, before the first use of a GPU:  numba.cuda.set_memory_manager(weir_cuda.numba.WeirManager)

Numba names no stream, so arrays are for any: a free waits for the device, as Numba's own cuMemFree does
(weir_alloc_any, weir_free_any).  Host memory stays Numba's.  There are no IPC handles.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

from numba.cuda import HostOnlyCUDAMemoryManager, MemoryInfo, MemoryPointer

from ._allocator import Allocator


class WeirManager(HostOnlyCUDAMemoryManager):  # type: ignore[misc]
    def initialize(self) -> None:
        super().initialize()
        self.weir = Allocator(self.context.device.id)
        self.live: set[int] = set()

    def memalloc(self, size: int) -> Any:
        weir, live = self.weir, self.live
        address = weir.alloc(size)
        live.add(address)

        def finalizer() -> None:
            if address in live:  # a reset has given it back
                live.remove(address)
                weir.free(address)

        return MemoryPointer(weakref.proxy(self.context), ctypes.c_void_p(address), size,
                             finalizer=finalizer)

    def reset(self) -> None:
        while self.live:
            self.weir.free(self.live.pop())
        super().reset()

    def get_memory_info(self) -> Any:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        cuda = ctypes.CDLL("libcuda.so.1")
        if cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) != 0:
            raise RuntimeError("the driver does not tell the device's memory")
        return MemoryInfo(free=free.value, total=total.value)

    def get_ipc_handle(self, memory: Any) -> Any:
        raise NotImplementedError("memory of weir's is not shared with other processes")

    @property
    def interface_version(self) -> int:
        return 1


_numba_memory_manager = WeirManager
