# SPDX-License-Identifier: MIT
"""What the features share."""

import ctypes
import functools
import gc
import os
import shutil
import subprocess
import sys
import tempfile

import torch
from torch import nn

DEVICE = "cuda"
BOTH = FIRST, SECOND = "cuda:0", "cuda:1"
MIB, GIB = 1 << 20, 1 << 30

# An allocator for CUDAPluggableAllocator that counts its calls.
ALLOCATOR = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <sys/types.h>
long allocs, frees;
static void *find(const char *name) {
    void *found = dlsym(RTLD_DEFAULT, name);
    if (!found) found = dlsym(dlopen("libcudart.so.13", RTLD_LAZY), name);
    if (!found) found = dlsym(dlopen("libcudart.so.12", RTLD_LAZY), name);
    return found;
}
void *counted_alloc(ssize_t size, int device, void *stream) {
    int (*take)(void **, size_t) = (int (*)(void **, size_t))find("cudaMalloc");
    void *block = NULL;
    __sync_fetch_and_add(&allocs, 1);
    return take && take(&block, (size_t)size) == 0 ? block : NULL;
}
void counted_free(void *block, ssize_t size, int device, void *stream) {
    int (*give)(void *) = (int (*)(void *))find("cudaFree");
    __sync_fetch_and_add(&frees, 1);
    if (give) give(block);
}
"""


class Skip(Exception):
    """This machine cannot run the feature."""


def feature(function=None, *, timeout=60):
    if function is None:
        return functools.partial(feature, timeout=timeout)
    function.timeout = timeout
    return function


def since(major, minor):
    """Under `@feature': with an older PyTorch the feature is skipped."""

    def decorator(function):
        @functools.wraps(function)
        def checked():
            version = tuple(int(part) for part in torch.__version__.split(".")[:2])
            if version < (major, minor):
                raise Skip(f"PyTorch {torch.__version__} lacks it: {major}.{minor} has it")
            return function()

        return checked

    return decorator


def feature_of_two(function):
    """A feature that needs two GPUs."""

    @functools.wraps(function)
    def checked():
        count = torch.cuda.device_count()
        if count < 2:
            raise Skip(f"needs two GPUs, and there is {count}")
        for device in BOTH:
            torch.zeros(1, device=device)  # a context
        settle()
        return function()

    return feature(checked, timeout=90)


def settle():
    """Nothing of earlier work is left."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def total_memory():
    return torch.cuda.mem_get_info()[1]


def block(size, value=None):
    """A tensor of so many bytes, each with this value."""
    if value is None:
        return torch.empty(size, dtype=torch.uint8, device=DEVICE)
    return torch.full((size,), value, dtype=torch.uint8, device=DEVICE)


def holds(tensor, value):
    return bool((tensor == value).all())


def net(width=512):
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)).to(DEVICE)


def close(one, other, tolerance=1e-3):
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def within(pointer, segments):
    return any(s["address"] <= pointer < s["address"] + s["total_size"] for s in segments)


def program(source, *arguments, environment=None, timeout=60):
    """Runs a program of Python in a process of its own, as this one runs; a variable that is None is removed."""
    words = {key: value for key, value in {**os.environ, **(environment or {})}.items() if value is not None}
    return subprocess.run([sys.executable, "-c", source, *arguments], capture_output=True, text=True, env=words,
                          timeout=timeout, check=False)


@functools.lru_cache(maxsize=None)
def counted_library():
    """The path of the allocator above as a library."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), None)
    if compiler is None:
        raise Skip("no C compiler")
    folder = tempfile.mkdtemp(prefix="torch-features-")
    source, library = os.path.join(folder, "counted.c"), os.path.join(folder, "libcounted.so")
    with open(source, "w", encoding="utf-8") as file:
        file.write(ALLOCATOR)
    done = subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], capture_output=True,
                          text=True, check=False)
    if done.returncode:
        raise Skip("the C compiler fails: " + done.stderr.strip()[-100:])
    return library


def counted():
    """(the pluggable allocator, a function that gives its counts of calls)"""
    library = counted_library()
    allocator = torch.cuda.memory.CUDAPluggableAllocator(library, "counted_alloc", "counted_free")
    loaded = ctypes.CDLL(library)
    return allocator, lambda: tuple(ctypes.c_long.in_dll(loaded, name).value for name in ("allocs", "frees"))


def out_of_memory(size):
    """The message of the OutOfMemoryError that this size must raise."""
    try:
        block(size)
    except torch.cuda.OutOfMemoryError as error:
        return str(error)
    raise AssertionError(f"{size} bytes did not raise OutOfMemoryError")
