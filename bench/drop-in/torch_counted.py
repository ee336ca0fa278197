# SPDX-License-Identifier: MIT
"""PyTorch: some training whose calls of the CUDA runtime PyTorch's profiler counts, between two marks of
`weir record', for the recorder's count to be compared with.  One line of JSON: how often each call was made."""

import ctypes
import json

import torch
import torch.nn as nn
from torch.profiler import ProfilerActivity, profile

STEPS = 20


def mark(label):
    """Nothing where nobody records."""
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
        step()  # the profiler's own first time
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
