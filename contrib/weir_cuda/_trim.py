# SPDX-License-Identifier: MIT
"""trim(): gives idle device memory of this process back to its GPUs while the program goes on.

Frameworks that keep freed memory above weir free it first; then weir gives back what is idle.  This module calls a
framework only if the program has imported it, and makes no context.
"""

from __future__ import annotations

import ctypes
import re
import sys

from . import _library
from ._allocator import check
from ._library import ProcessMemory

TYPE_CHECKING = False  # typing takes longer to import than all else here
if TYPE_CHECKING:
    from typing import Any


class Trimmed:
    """What trim() has done, in bytes, on all devices.  str() is a sentence about it.

    released   bytes that went back to the devices
    reserved   bytes that weir still has of the devices; of these bytes
    live       bytes in live blocks
    held       sentences: what holds memory that is not live; empty if nothing does
    """

    def __init__(self, released: int, reserved: int, live: int, held: list[str]) -> None:
        self.released, self.reserved, self.live, self.held = released, reserved, live, held

    def __repr__(self) -> str:
        return f"<Trimmed released={self.released} reserved={self.reserved} live={self.live}>"

    def __str__(self) -> str:
        text = f"gave back {_shown(self.released)}; {_shown(self.reserved)} reserved, of which {_shown(self.live)} live"
        return "; ".join([text, *self.held])


def _shown(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.1f} MiB"


def _has_shim() -> bool:
    """Whether the shim of `weir torch --build' is loaded, so that weir is PyTorch's allocator."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        return re.search(r"/weir/torch/[^/\n]+\.so", maps.read()) is not None


def _free_torch(held: list[str]) -> int:
    """Empties PyTorch's cache.  Returns the bytes that PyTorch's own allocator freed, if that serves PyTorch."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return 0
    is_own = cuda.get_allocator_backend() == "native" and not _has_shim()
    devices = range(cuda.device_count() if is_own else 0)
    before = sum(cuda.memory_reserved(device) for device in devices)
    cuda.empty_cache()
    after = sum(cuda.memory_reserved(device) for device in devices)
    idle = after - sum(cuda.memory_allocated(device) for device in devices)
    if idle > 0:
        held.append(f"PyTorch's own allocator keeps {_shown(idle)} beside live tensors")
    return before - after


def _free_cupy(held: list[str]) -> int:
    """Empties CuPy's memory pools of the current device.  Returns the bytes that they freed."""
    cupy: Any = sys.modules.get("cupy")
    if not hasattr(cupy, "get_default_memory_pool"):
        return 0
    current = getattr(cupy.cuda.get_allocator(), "__self__", None)
    pools = [cupy.get_default_memory_pool()]
    if isinstance(current, cupy.cuda.MemoryPool) and current is not pools[0]:
        pools.append(current)
    before = sum(pool.total_bytes() for pool in pools)
    for pool in pools:
        pool.free_all_blocks()
    idle = sum(pool.free_bytes() for pool in pools)
    if idle > 0:
        held.append(f"CuPy's memory pool keeps {_shown(idle)} beside live arrays")
    return before - sum(pool.total_bytes() for pool in pools)


def _look_at_jax(held: list[str]) -> None:
    from . import jax

    if "jax" in sys.modules and not jax.is_served():
        held.append("JAX's own allocator keeps what it has taken: start the program with `weir run'")


def _trim(library: ctypes.CDLL) -> ProcessMemory:
    memory = ProcessMemory(size=ctypes.sizeof(ProcessMemory))
    check("trim", library.weir_process_trim(ctypes.byref(memory)))
    return memory


def _trim_all() -> tuple[int, int, int]:
    """Trims weir's allocators.  Returns the bytes that went, that stay reserved, and that are live."""
    outer, address = _library.serving(), _library.address_of
    memory = _trim(outer)
    if not _library.loaded("libweir.so") or address(outer) == address(_library.library()):
        return memory.released, memory.reserved, memory.in_use
    # Plug-ins of a program under `weir run' have allocators of their own, which take their memory from `outer'.
    inner, released = _trim(_library.library()), memory.released
    memory = _trim(outer)
    return released + memory.released, memory.reserved, memory.in_use - inner.reserved + inner.in_use


def trim() -> Trimmed:
    """Gives idle device memory of this process back to the devices, and waits for them.

    Caches of PyTorch and CuPy go first (torch.cuda.empty_cache, free_all_blocks).  Live tensors and arrays stay, so drop
    the references to those that are not needed any more.  Memory that shares a physical allocation with a live block
    stays, too: see Trimmed.held.  The next request that needs more memory takes it from the device again.
    """
    held: list[str] = []
    released, reserved, live = _trim_all()
    freed = _free_torch(held) + _free_cupy(held)
    before = live
    more, reserved, live = _trim_all()
    released += more + max(freed - max(before - live, 0), 0)  # a cache that does not lie above weir
    if reserved > live:
        held.insert(0, f"{_shown(reserved - live)} of weir's memory is idle, but beside live blocks")
    _look_at_jax(held)
    return Trimmed(released, reserved, live, held)
