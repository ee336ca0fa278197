# SPDX-License-Identifier: MIT
"""Finds libweir and what comes with it, and declares its functions for ctypes.  No other module opens a library.

The package lies in one of three places: in a wheel, which has a tree of its own (lib/, bin/, share/ in this folder);
below PREFIX/share/weir/python, where `make install' puts it; or anywhere else, and then the dynamic linker and PATH
find the library and the program.  Nothing is opened before it is needed.
"""

from __future__ import annotations

import ctypes
import functools
import os

_HERE = os.path.dirname(os.path.abspath(__file__))
_TREES = (_HERE, os.path.normpath(os.path.join(_HERE, "../../../..")))
_LIBRARY = "libweir.so.1"
_ADAPTERS = "libweir-adapters.so"

# In the order of weir_statistics in weir/stats.h.
FIGURES = tuple(
    """attempts allocs frees hits growth_allocs failed_requests retries growths growth_bytes stall_ns trims
    trim_bytes blocks requested requested_peak in_use in_use_peak reserved reserved_peak extent prealloc_asked
    prealloc_got prealloc_kept prealloc_ns host_bytes cache_hits cache_misses_young cache_misses_empty
    cache_misses_capture steals event_records deferred_frees cache_idle cache_streams late_writes overruns
    kept_out ahead_steps ahead_bytes ahead_ns ahead_failures prealloc_waited_ns profile_asked
    profile_runs reclaims received_bytes releases released_bytes""".split()
)

NO_MEMORY, LIMIT, NO_DEVICE, DEVICE_LOST, NOT_SUPPORTED = -2, -4, -5, -7, -14
BYTES, OF_TOTAL, MAX = 1, 2, 4


class Statistics(ctypes.Structure):
    """weir_statistics: each figure is an attribute, in bytes unless weir/stats.h says otherwise."""

    _fields_ = [("size", ctypes.c_size_t)] + [(name, ctypes.c_uint64) for name in FIGURES]

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in FIGURES}

    def __repr__(self) -> str:
        return f"<Statistics {' '.join(f'{name}={value}' for name, value in self.as_dict().items())}>"


class Amount(ctypes.Structure):
    _fields_ = [("value", ctypes.c_uint64), ("kind", ctypes.c_int), ("reserved", ctypes.c_int)]


class ProcessMemory(ctypes.Structure):
    """weir_process_memory, in bytes."""

    _fields_ = [("size", ctypes.c_size_t)] + [(name, ctypes.c_uint64) for name in ("released", "reserved", "in_use")]


_pointer, _out = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
# ctypes converts a number to c_void_p in a third of the time that c_size_t takes; as arguments they are the same.
_bytes = ctypes.c_void_p
_int, _text, _size = ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t
_DECLARED = {
    "weir_status_message": (_text, _int),
    "weir_version": (_text,),
    "weir_device_allocator": (_int, _int, _out),
    "weir_options_init_sized": (_int, _pointer, _size),
    "weir_options_set": (_int, _pointer, _text, _text, _text, _size),
    "weir_options_from_env": (_int, _pointer, _text, _size),
    "weir_allocators_create": (_int, _pointer, ctypes.POINTER(_int), _size, _out),
    "weir_allocator_destroy": (_int, _pointer),
    "weir_alloc_address": (ctypes.c_ssize_t, _pointer, _bytes, _pointer),
    "weir_free": (_int, _pointer, _pointer, _pointer),
    "weir_alloc_any": (_int, _pointer, _bytes, _pointer),
    "weir_free_any": (_int, _pointer, _pointer),
    "weir_use": (_int, _pointer, _pointer, _pointer),
    "weir_set_limit": (_int, _pointer, Amount),
    "weir_trim": (_int, _pointer, _size, ctypes.POINTER(_size)),
    "weir_process_trim": (_int, ctypes.POINTER(ProcessMemory)),
    "weir_pool": (_int, _pointer, _out),
    "weir_stats": (_int, _pointer, ctypes.POINTER(Statistics)),
    "weir_last_oom_report": (_int, _pointer, _pointer),
    "weir_oom_report_text": (_size, _pointer, _int, _text, _size),
}


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    for name, (result, *arguments) in _DECLARED.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _find(*patterns: str) -> str | None:
    import glob

    for tree in _TREES:
        for pattern in patterns:
            for path in sorted(glob.glob(os.path.join(tree, pattern))):
                return path
    return None


@functools.cache
def library() -> ctypes.CDLL:
    """libweir.  OSError: it is neither beside this package nor where the dynamic linker looks."""
    path = _find(f"lib/{_LIBRARY}", f"lib64/{_LIBRARY}", f"lib/*/{_LIBRARY}") or _LIBRARY
    try:
        return _declare(ctypes.CDLL(path))
    except OSError as error:
        raise OSError(
            f"weir's library cannot be opened: {error}.  Install weir, or name the folder of {_LIBRARY} "
            "in LD_LIBRARY_PATH"
        ) from None


@functools.cache
def serving() -> ctypes.CDLL:
    """The library that serves this process: under `weir run' the one that it preloaded, else libweir."""
    loaded = ctypes.CDLL(None)
    return _declare(loaded) if hasattr(loaded, "weir_device_allocator") else library()


@functools.cache
def adapters() -> ctypes.CDLL:
    """libweir-adapters.so; its path is in _name, for frameworks that open it themselves."""
    library()  # which it needs, and finds loaded
    path = _find(f"lib/weir/{_ADAPTERS}", f"lib64/weir/{_ADAPTERS}", f"lib/*/weir/{_ADAPTERS}")
    if not path:  # the package is elsewhere, as a distribution has it; or the dynamic linker finds the module
        beside = os.path.join(os.path.dirname(loaded(_LIBRARY)), "weir", _ADAPTERS)
        path = beside if os.path.exists(beside) else _ADAPTERS
    return ctypes.CDLL(path)


def loaded(name: str) -> str:
    """The path of a library that this process has loaded; "": it has none of that name."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            path = line[line.find("/") :].rstrip("\n") if "/" in line else ""
            if os.path.basename(path).startswith(name):
                return path
    return ""


def address_of(library: ctypes.CDLL) -> int | None:
    """The address of one function of weir: two names of one library have the same."""
    return ctypes.cast(library.weir_process_trim, ctypes.c_void_p).value


def is_preloaded() -> bool:
    """Whether `weir run' started this process: its library is loaded."""
    return bool(loaded("libweir-preload.so"))


def program() -> str:
    """The path of the program weir.  FileNotFoundError: there is none."""
    import shutil

    found = _find("bin/weir") or shutil.which("weir")
    if not found:
        raise FileNotFoundError("the program weir is not on PATH")
    return found
