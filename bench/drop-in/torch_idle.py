# SPDX-License-Identifier: MIT
"""PyTorch: allocates some GiB of tensors, frees them, and waits for a line of input.  Meanwhile PyTorch's cache holds
idle memory."""

import sys

import common
import torch


def main():
    options = common.arguments(1, gib=(110, "in tensors of one"))
    tensors = [torch.ones(1 << 28, device="cuda") for _ in range(options.gib)]
    torch.cuda.synchronize()
    del tensors
    print("ready", flush=True)
    sys.stdin.readline()
    print(f"{float(torch.ones(1 << 28, device='cuda').sum()):.0f}", flush=True)


main()
