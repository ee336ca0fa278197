# SPDX-License-Identifier: MIT
"""PyTorch: trains a model of the size of GPT-2 small on random tokens.  All sequences have one length, or each batch
has another length.

When a new length occurs, the libraries below PyTorch take more host time than all other work of an iteration.  With
`varying', each length is new.  With `recurring', the second half of the iterations uses the lengths of the first half
again, in another order.  The remaining difference between allocators is then the time that they take themselves."""

import random

import common
import torch
import torch_common
from torch_model import LENGTH, WORDS, Model, loss_of

BATCH = 8


def lengths_of(kind, iterations):
    draw = random.Random(0)
    if kind == "fixed":
        return [LENGTH] * iterations
    if kind == "varying":
        return [draw.randint(64, LENGTH) for _ in range(iterations)]
    if kind != "recurring":
        raise SystemExit(f"--lengths {kind}: fixed, varying or recurring")
    new = [draw.randint(64, LENGTH) for _ in range(iterations - iterations // 2)]
    return new + draw.sample(new, iterations // 2)


def main():
    options = common.arguments(40, lengths=("fixed", "fixed, varying or recurring"))
    torch_common.choose_allocator()
    torch.manual_seed(0)
    lengths = lengths_of(options.lengths, options.iterations)
    model = Model("small").cuda()
    device = common.Device()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(WORDS, (BATCH, LENGTH + 1)).cuda()
    last = [0.0]

    def iterate(i):
        loss = loss_of(model, tokens[:, :lengths[i] + 1])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        last[0] = loss.item()
        torch.cuda.synchronize()

    times = common.measure(iterate, options.iterations, device)
    common.report("torch-gpt2-" + options.lengths, times, device, torch_common.peak(), last[0],
                  **torch_common.facts())


main()
