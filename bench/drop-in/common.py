# SPDX-License-Identifier: MIT
"""common.py: functions for all programs of this folder: they time iterations, and read the used memory of the device.

The programs do not use weir themselves, except for WEIR_TORCH_PLUGGABLE (torch_common.py).  Each program writes one
line of JSON, from which tests/gpu/drop-in makes its table.
"""

import argparse
import ctypes
import json
import statistics
import time

MIB = 1 << 20


class Device:
    """Reads the used memory of a device from the driver, in the primary context that frameworks use.

    Create a Device only after the framework has created this context, because the framework may choose its flags."""

    def __init__(self, ordinal=0):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.context = ctypes.c_void_p()
        self.most_used = 0
        self._call("cuInit", 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), ordinal)

    def _call(self, name, *arguments):
        result = getattr(self.cuda, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name}: {result}")

    def used(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuCtxPushCurrent_v2", self.context)
        try:
            self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        used = total.value - free.value
        self.most_used = max(self.most_used, used)
        return used


def arguments(iterations, **more):
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=iterations)
    for name, (default, text) in more.items():
        parser.add_argument("--" + name, type=type(default), default=default, help=text)
    return parser.parse_args()


def measure(step, iterations, device):
    """Runs step(i) for each iteration, and returns the times of the iterations in ms.  step must wait for its GPU work.

    Reads the used memory after each iteration; this is not a part of the time."""
    times = []
    for i in range(iterations):
        start = time.perf_counter()
        step(i)
        times.append((time.perf_counter() - start) * 1e3)
        device.used()
    return times


def report(name, times, device, peak, result, **more):
    """Prints the results as a line of JSON.  `peak' is the framework's peak of bytes in use, or None if it is not
    known."""
    second_half = times[len(times) // 2:]
    print(json.dumps({
        "program": name,
        "first_ms": times[0],
        "steady_ms": statistics.median(second_half),
        "steady_worst_ms": max(second_half),
        "used_mib": device.used() / MIB,
        "most_used_mib": device.most_used / MIB,
        "peak_mib": peak / MIB if peak is not None else None,
        "result": result,
        "iterations_ms": times,
        **more,
    }), flush=True)
