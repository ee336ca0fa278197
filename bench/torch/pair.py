#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch: measures the host time of an allocation of 64 KiB and its free in nanoseconds.  Prints one line of JSON.

    pair.py [--size BYTES] [--count N] [--repeats N] [--build FOLDER] [--build-only]

The program compiles pair.cpp with $CXX or g++ and PyTorch's headers.  Without a compiler, it measures only a loop in
Python and subtracts an empty loop: torch.cuda.caching_allocator_alloc with _delete, and torch.empty."""

import argparse
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import torch

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pair.cpp")


def cuda_headers():
    """Returns folders that may contain cuda_runtime_api.h: those of the toolkit and of NVIDIA's wheels."""
    from torch.utils import cpp_extension
    found = [os.path.join(home, "include") for home in (cpp_extension.CUDA_HOME, "/usr/local/cuda") if home]
    packages = os.path.dirname(os.path.dirname(torch.__file__))
    found += [os.path.join(packages, "nvidia", name, "include") for name in ("cu13", "cuda_runtime")]
    return [folder for folder in found if os.path.exists(os.path.join(folder, "cuda_runtime_api.h"))][:1]


def build(folder):
    """Compiles pair.cpp.  Returns the functions, or (None, reason) on failure."""
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    if compiler is None:
        return None, "no C++ compiler"
    root = os.path.dirname(torch.__file__)
    headers = [os.path.join(root, "include"), os.path.join(root, "include", "torch", "csrc", "api", "include"),
               *cuda_headers()]
    library = os.path.join(folder, "libpair.so")
    command = [compiler, "-std=c++20", "-O2", "-w", "-shared", "-fPIC",
               f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
               *(f"-I{header}" for header in headers), SOURCE, "-o", library,
               f"-L{root}/lib", f"-Wl,-rpath,{root}/lib", "-lc10_cuda", "-lc10"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return None, "the compiler fails: " + next((line for line in done.stderr.splitlines() if "error" in line), "")
    loaded = ctypes.CDLL(library)
    for name in ("pair_of_tensor", "pair_raw", "pair_of_several", "pair_of_sizes", "empty_loop"):
        getattr(loaded, name).restype = ctypes.c_double
    return loaded, None


def in_python(size, count):
    """Measures a loop in Python.  Returns the nanoseconds for caching_allocator_alloc and for torch.empty, each with
    its free."""

    def timed(work):
        start = time.perf_counter()
        for _ in range(count):
            work()
        return (time.perf_counter() - start) / count * 1e9

    empty = timed(lambda: None)
    stream = torch.cuda.current_stream().cuda_stream
    alloc, delete = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_cudaCachingAllocator_raw_delete
    return {"python_raw_ns": timed(lambda: delete(alloc(size, stream))) - empty,
            "python_empty_ns": timed(lambda: torch.empty(size, dtype=torch.uint8, device="cuda")) - empty}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--size", type=int, default=1 << 16)
    parser.add_argument("--count", type=int, default=1_000_000, help="pairs in a repeat")
    parser.add_argument("--repeats", type=int, default=5, help="of which the median counts")
    parser.add_argument("--build", metavar="FOLDER", help="where the compiled code goes")
    parser.add_argument("--build-only", action="store_true", help="measure nothing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        library, why = build(options.build or temporary)
        if options.build_only:
            print(why or "built")
            return 1 if why else 0
        torch.zeros(1, device="cuda")
        size, count = ctypes.c_size_t(options.size), ctypes.c_long(options.count)
        ways = {}
        if library:
            live, most = ctypes.c_long(64), ctypes.c_size_t(4 << 20)
            ways = {"pair_ns": lambda: library.pair_of_tensor(size, count),
                    "raw_ns": lambda: library.pair_raw(size, count),
                    "several_ns": lambda: library.pair_of_several(size, count, live),
                    "sizes_ns": lambda: library.pair_of_sizes(most, count, live),
                    "empty_loop_ns": lambda: library.empty_loop(count)}
        told = {}
        for name, way in ways.items():
            way()  # fills the cache
            times = [way() for _ in range(options.repeats)]
            told[name] = statistics.median(times)
            told["least_" + name] = min(times)
        rows = [in_python(options.size, options.count // 10) for _ in range(options.repeats)]
        told.update({name: statistics.median(row[name] for row in rows) for name in rows[0]})
        print(json.dumps({"program": "pair", "size": options.size, "count": options.count, "without": why, **told,
                          "backend": torch.cuda.get_allocator_backend(), "version": torch.__version__}), flush=True)
    return 1 if any(value < 0 for name, value in told.items() if name in ways) else 0


if __name__ == "__main__":
    sys.exit(main())
