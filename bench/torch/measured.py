# SPDX-License-Identifier: MIT
"""measured.py: functions for all programs of this folder: options, timing of iterations, and the line of JSON at the
end.

The programs do not know weir.  The time of an iteration ends when the GPU has done its work.  The second half of the
iterations counts as steady, the first half as warm-up.  After each iteration, and not as a part of its time, the device
is asked how much of its memory is in use.  This figure does not depend on the allocator."""

import argparse
import json
import os
import statistics
import sys
import time

import torch

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "drop-in"))

MIB = 1 << 20


class Device:
    """The device: a GPU, or the CPU for a trial of a program."""

    def __init__(self, name):
        self.is_gpu = name != "cpu"
        self.most_used = 0
        self.used_before = self.used()  # includes a context, but no memory of the program yet

    def used(self):
        if not self.is_gpu:
            return 0
        free, total = torch.cuda.mem_get_info()
        self.most_used = max(self.most_used, total - free)
        return total - free

    def wait(self):
        if self.is_gpu:
            torch.cuda.synchronize()


def parsed(text, iterations, **more):
    """Parses the options that all programs have, and those of `more', which has the form name=(default, help).  Uses no
    GPU."""
    parser = argparse.ArgumentParser(description=text.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--iterations", type=int, default=iterations)
    parser.add_argument("--share", type=float, default=1, help="part of the iterations that run")
    parser.add_argument("--compile", action="store_true", help='by torch.compile(mode="reduce-overhead")')
    parser.add_argument("--device", default="cuda", help="cpu shows whether the program works, and measures nothing")
    for name, (default, what) in more.items():
        parser.add_argument("--" + name, type=type(default), default=default, help=what)
    options = parser.parse_args()
    options.iterations = max(2, round(options.iterations * options.share))
    return options


def begin(options):
    """Prepares the process that is measured.  Its GPU must be the current device."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    options.measured = Device(options.device)


def options_of(text, iterations, **more):
    options = parsed(text, iterations, **more)
    begin(options)
    return options


def maybe_compiled(function, options, **words):
    return torch.compile(function, mode="reduce-overhead", **words) if options.compile else function


def figures_of(name, step, options, **more):
    """Runs step(i) for each iteration, and returns the figures.

    step returns a number that depends on the work, or None."""
    device = options.measured
    times, result = [], 0.0
    for i in range(options.iterations):
        if options.compile:
            torch.compiler.cudagraph_mark_step_begin()
        start = time.perf_counter()
        value = step(i)
        device.wait()
        times.append((time.perf_counter() - start) * 1e3)
        if value is not None:
            result = float(value)
        device.used()
    half = len(times) // 2
    row = {
        "program": name, "compile": options.compile, "first_ms": times[0], "warmup_ms": sum(times[:half]),
        "steady_ms": statistics.median(times[half:]), "steady_sum_ms": sum(times[half:]),
        "steady_worst_ms": max(times[half:]), "device_peak_mib": device.most_used / MIB,
        "device_before_mib": device.used_before / MIB, "result": result, "version": torch.__version__, **more,
    }
    if device.is_gpu:
        stats = torch.cuda.memory_stats()
        row.update(reserved_peak_mib=torch.cuda.max_memory_reserved() / MIB,
                   allocated_peak_mib=torch.cuda.max_memory_allocated() / MIB,
                   backend=torch.cuda.get_allocator_backend(), card=torch.cuda.get_device_name(),
                   allocations=stats.get("allocation.all.allocated"), device_allocs=stats.get("num_device_alloc"),
                   alloc_retries=stats.get("num_alloc_retries"))
    row["iterations_ms"] = times
    return row


def measure(name, step, options, **more):
    """Runs the iterations, and prints the figures as a line of JSON."""
    print(json.dumps(figures_of(name, step, options, **more)), flush=True)
