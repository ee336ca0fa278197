#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch: trains a model of the size of GPT-2 small on random tokens, with one length or with varying lengths.

The model is that of bench/drop-in.  Varying lengths are multiples of 8.  With --compile they are multiples of 128,
since each length needs its own CUDA graph.  The second half of the iterations uses the lengths of the first half again,
in another order."""

import random

import torch

import measured
from torch_model import LENGTH, WORDS, Model, loss_of


def lengths_of(options):
    if options.lengths == "fixed":
        return [LENGTH] * options.iterations
    draw, unit = random.Random(0), 128 if options.compile else 8
    half = options.iterations // 2
    new = [unit * draw.randint(64 // unit or 1, LENGTH // unit) for _ in range(half)]
    again = new + [LENGTH] * (options.iterations - 2 * half)
    return new + draw.sample(again, len(again))


def main():
    options = measured.options_of(__doc__, 60, lengths=("fixed", "fixed or varying"), size=("small", "small or medium"),
                                  batch=(8, "sequences in a batch"))
    lengths = lengths_of(options)
    model = Model(options.size).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(WORDS, (options.batch, LENGTH + 1)).to(options.device)
    run = measured.maybe_compiled(lambda batch: loss_of(model, batch), options,
                                  dynamic=options.lengths == "varying")  # one CUDA graph for each length

    def step(i):
        loss = run(tokens[:, :lengths[i] + 1])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    measured.measure(f"gpt2-{options.lengths}", step, options)


if __name__ == "__main__":
    main()
