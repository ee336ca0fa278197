# SPDX-License-Identifier: MIT
"""PyTorch: trains a small model between two marks of `weir record', while PyTorch's profiler counts the calls of the
CUDA runtime.  A test compares these counts with those of the recorder.

Prints one line of JSON with the number of each call."""

import ctypes
import json

import torch
import torch.nn as nn
from torch.profiler import ProfilerActivity, profile

STEPS = 20


def mark(label):
    """Sets a mark in the trace, if `weir record' records the program."""
    try:
        ctypes.CDLL(None).weir_mark(label.encode())
    except AttributeError:
        pass


def main():
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(8)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(1024, 512).cuda()

    def step():
        optimizer.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        optimizer.step()

    step()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]):
        step()  # the first step under the profiler is slower
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as counted:
        torch.cuda.synchronize()
        mark("counted")
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        mark("counted")
    calls = {event.key: event.count for event in counted.key_averages() if event.key.startswith("cuda")}
    print(json.dumps({"calls": calls, "backend": torch.cuda.get_allocator_backend()}), flush=True)


main()
