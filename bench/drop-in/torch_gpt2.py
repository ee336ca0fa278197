# SPDX-License-Identifier: MIT
"""PyTorch: training of a model the size of GPT-2 small on random tokens, all sequences of one length,
or each batch of another."""

import random

import common
import torch
import torch_common
from torch_model import LENGTH, WORDS, Model, loss_of

BATCH = 8


def main():
    options = common.arguments(40, lengths=("fixed", "fixed or varying"))
    torch_common.choose_allocator()
    torch.manual_seed(0)
    lengths = random.Random(0)
    model = Model("small").cuda()
    device = common.Device()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(WORDS, (BATCH, LENGTH + 1)).cuda()
    last = [0.0]

    def iterate(_):
        length = LENGTH if options.lengths == "fixed" else lengths.randint(64, LENGTH)
        loss = loss_of(model, tokens[:, :length + 1])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        last[0] = loss.item()
        torch.cuda.synchronize()

    times = common.measure(iterate, options.iterations, device)
    common.report("torch-gpt2-" + options.lengths, times, device, torch_common.peak(), last[0],
                  **torch_common.facts())


main()
