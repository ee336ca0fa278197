# SPDX-License-Identifier: MIT
"""Allocators of weir from Python, and the errors that they raise.  Contracts: weir/allocator.h, weir/oom_report.h."""

from __future__ import annotations

import ctypes
import os

from . import _library
from ._library import Statistics

TYPE_CHECKING = False  # typing takes longer to import than all else here
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

_ROOM = 4096  # more than weir_options, weir_oom_report and its text take
_AS_TEXT, _AS_JSON = 0, 1


class Error(RuntimeError):
    """A call of weir failed.  `status` is its weir_status."""

    def __init__(self, what: str, status: int, advice: str = "") -> None:
        said = _library.library().weir_status_message(status).decode()
        super().__init__(f"weir: {what}: {said}{advice}")
        self.status = status


class OutOfMemoryError(Error, MemoryError):
    """A request failed for lack of memory, or because of a limit.

    `report` is the OOM report as a dictionary, with the keys that weir-json(7) lists; bytes, and None where a figure
    is not known.  `text` is the report for people.  Both are empty where no allocator made the request.
    """

    def __init__(self, what: str, status: int, handle: ctypes.c_void_p | None = None, advice: str = "") -> None:
        self.report: dict[str, Any] = {}
        self.text = ""
        if handle is not None:
            self._take_report(handle)
        super().__init__(what, status, f"\n{self.text}" if self.text else advice)

    def _take_report(self, handle: ctypes.c_void_p) -> None:
        import json

        library = _library.library()
        report, text = ctypes.create_string_buffer(_ROOM), ctypes.create_string_buffer(_ROOM)
        ctypes.c_size_t.from_buffer(report).value = _ROOM
        if library.weir_last_oom_report(handle, report) != 0:
            return
        library.weir_oom_report_text(report, _AS_TEXT, text, _ROOM)
        self.text = text.value.decode(errors="replace").rstrip("\n")
        library.weir_oom_report_text(report, _AS_JSON, text, _ROOM)
        self.report = json.loads(text.value)


def check(what: str, status: int, handle: ctypes.c_void_p | None = None, advice: str = "") -> None:
    """Raises the exception of a status other than success.  The exception's text ends with the handle's OOM report, or
    with `advice` if there is no report."""
    if status in (_library.NO_MEMORY, _library.LIMIT):
        raise OutOfMemoryError(what, status, handle, advice)
    if status:
        raise Error(what, status, advice)


def _device_number(device: int) -> ctypes.c_int:
    try:
        return ctypes.c_int(device)
    except TypeError:
        expected = "expected a GPU's number; WEIR_DEVICE=model selects the device model"
        raise TypeError(f"weir: device {device!r}: {expected}") from None


def _check_created(device: int, status: int) -> None:
    """Raises the exception of an allocator that could not be created.  There is no OOM report without an allocator."""
    advice = "" if os.environ.get("WEIR_LOG") else ".  WEIR_LOG=error prints why"
    if status == _library.NO_DEVICE and os.environ.get("WEIR_DEVICE") != "model":
        advice += ".  Without a GPU, set WEIR_DEVICE=model"
    check(f"device {device}", status, advice=advice)


def _options(settings: dict[str, Any]) -> ctypes.Array[ctypes.c_char]:
    """weir_options of these settings, and below them of the environment."""
    library, options = _library.library(), ctypes.create_string_buffer(_ROOM)
    message = ctypes.create_string_buffer(512)
    check("options", library.weir_options_init_sized(options, _ROOM))  # the tail stays zero, which any version takes
    for name, value in settings.items():
        text = ("on" if value else "off") if isinstance(value, bool) else str(value)
        setting = name.replace("_", "-")
        if library.weir_options_set(options, setting.encode(), text.encode(), message, len(message)) != 0:
            raise ValueError(f"weir: {setting}: {message.value.decode() or 'there is no such setting'}")
    if library.weir_options_from_env(options, message, len(message)) != 0:
        raise ValueError(f"weir: {message.value.decode()}")
    return options


class Allocator:
    """An allocator of a device, which is a GPU's number.  With WEIR_DEVICE=model it is the device model.

    Without settings it is the one that all of the process share (weir_device_allocator), so stats() shows what a
    framework in the process uses.  With settings it is one of its own: Allocator(limit="4GiB", engine="pool"), named
    as in weir-settings(7) with _ for -; the WEIR_ variables say the rest.  close(), or the end of a `with', then
    gives its memory back.

    A stream is the handle as a number (0x1 is the legacy default stream).  None means any stream: such a block may
    be used at once on each, and its free waits for the device.  Methods may be called from any thread.
    """

    def __init__(self, device: int = 0, **settings: Any) -> None:
        library = _library.library()
        handle = ctypes.c_void_p()
        self._is_own = bool(settings)
        if settings:
            status = library.weir_allocators_create(_options(settings), _device_number(device), 1, ctypes.byref(handle))
        else:
            status = library.weir_device_allocator(_device_number(device), ctypes.byref(handle))
        _check_created(device, status)
        self.handle: ctypes.c_void_p | None = handle
        self._library = library
        # Looked up once, as each request takes them.
        self._alloc, self._free = library.weir_alloc_address, library.weir_free

    def __enter__(self) -> Allocator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Error:
            if error is None:  # live blocks are no news then
                raise

    def close(self) -> None:
        """Gives the memory of an allocator of its own back to the device; Error if blocks are live.  The process's
        allocator stays.  A second call does nothing."""
        if self._is_own and self.handle is not None:
            check("close", self._library.weir_allocator_destroy(self.handle))
        self.handle = None

    def alloc(self, size: int, stream: int | None = None) -> int:
        """The address of a block of `size` bytes.  OutOfMemoryError, Error."""
        if stream is None:
            block = self._alloc_any(size)
        else:
            block = self._alloc(self.handle, size, stream)
        if block < 0:
            check(f"{size} bytes", block, self.handle)
        return block

    def _alloc_any(self, size: int) -> int:
        out = ctypes.c_void_p()
        status: int = self._library.weir_alloc_any(self.handle, size, ctypes.byref(out))
        return status or out.value or 0

    def free(self, block: int, stream: int | None = None) -> None:
        """Frees a block in the order of the stream.  None: it waits until the device has done all work."""
        if stream is None:
            status = self._library.weir_free_any(self.handle, block)
        else:
            status = self._free(self.handle, block, stream)
        if status and status != _library.DEVICE_LOST:  # as at the end of the process: there is nothing to give back to
            check(f"free of {block:#x}", status)

    def use(self, block: int, stream: int) -> None:
        """Declares that work on the stream uses the block too, so its free waits for that."""
        check(f"use of {block:#x}", self._library.weir_use(self.handle, block, stream))

    def set_limit(self, size: int | None = None) -> None:
        """The most bytes to reserve from now on; None: the limit of the settings."""
        amount = _library.Amount(0, _library.MAX, 0) if size is None else _library.Amount(size, _library.BYTES, 0)
        check(f"limit {size}", self._library.weir_set_limit(self.handle, amount))

    def trim(self, keep: int = 0) -> int:
        """Gives idle memory back until `keep` bytes stay reserved, as far as it can; the bytes that went."""
        released = ctypes.c_size_t()
        check("trim", self._library.weir_trim(self.handle, keep, ctypes.byref(released)))
        return released.value

    def pool(self) -> int:
        """The CUDA memory pool (cudaMemPool_t) of the pool engine; Error with any other engine."""
        pool = ctypes.c_void_p()
        status = self._library.weir_pool(self.handle, ctypes.byref(pool))
        if status == _library.NOT_SUPPORTED:
            raise Error(
                "pool", status, ": only the pool engine has one (WEIR_ENGINE=pool, before the first use of weir)"
            )
        check("pool", status)
        return pool.value or 0

    def stats(self) -> Statistics:
        """The figures of weir/stats.h."""
        return _stats(self._library, self.handle)


def _stats(library: ctypes.CDLL, handle: ctypes.c_void_p | None) -> Statistics:
    figures = Statistics(size=ctypes.sizeof(Statistics))
    check("statistics", library.weir_stats(handle, ctypes.byref(figures)))
    return figures


def stats(device: int = 0) -> Statistics:
    """The figures of the device's allocator, from the library that serves this process."""
    library, handle = _library.serving(), ctypes.c_void_p()
    _check_created(device, library.weir_device_allocator(_device_number(device), ctypes.byref(handle)))
    return _stats(library, handle)
