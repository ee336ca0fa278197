# SPDX-License-Identifier: MIT
"""PyTorch: runs inference on many streams at once, with requests of changing sizes.  Some streams use results of other
streams."""

import random

import common
import torch
import torch.nn as nn
import torch_common

STREAMS, LAYERS, WIDTH = 16, 6, 1024


def main():
    options = common.arguments(40)
    torch_common.choose_allocator()
    torch.manual_seed(0)
    sizes = random.Random(0)
    layers = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH),
                   nn.LayerNorm(WIDTH)]
    model = nn.Sequential(*layers).cuda().half().eval()
    streams = [torch.cuda.Stream() for _ in range(STREAMS)]
    rows = torch.randn(8192, WIDTH, device="cuda", dtype=torch.half)
    last = [0.0]
    torch.cuda.synchronize()
    device = common.Device()

    @torch.inference_mode()
    def iterate(_):
        handed, kept = None, []
        total = []
        for stream in streams:
            with torch.cuda.stream(stream):
                x = rows[:sizes.randint(64, 8192)].clone()
                for _ in range(3):
                    x = model(x)
                if handed is not None:
                    event, other = handed
                    stream.wait_event(event)
                    if torch_common.records_streams():
                        other.record_stream(stream)
                    else:
                        kept.append(other)
                    x = x + other.mean()
                event = torch.cuda.Event()
                event.record(stream)
                handed = (event, x)
                total.append(x.float().abs().mean())
        torch.cuda.synchronize()
        last[0] = sum(t.item() for t in total)

    times = common.measure(iterate, options.iterations, device)
    common.report("torch-streams", times, device, torch_common.peak(), last[0],
                  **torch_common.facts())


main()
