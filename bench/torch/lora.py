#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch: tunes a frozen model like Llama with low-rank matrices (LoRA).  The backward pass computes the layers again.

All batches have nearly equal numbers of tokens: many short texts or a few long ones, padded to the longest text."""

import random

import torch
import torch.nn.functional as functional
from torch import nn
from torch.utils.checkpoint import checkpoint

import measured
from llama import MOST, WIDTH, WORDS, Llama

RANK, LAYERS = 16, 16


class Low(nn.Module):
    """A frozen linear map, to which the product of two small matrices is added."""

    def __init__(self, frozen):
        super().__init__()
        self.frozen = frozen
        self.one = nn.Linear(frozen.in_features, RANK, bias=False)
        self.other = nn.Linear(RANK, frozen.out_features, bias=False)
        nn.init.zeros_(self.other.weight)

    def forward(self, x):
        low = self.other(self.one(functional.dropout(x, 0.05).float()))
        return self.frozen(x) + 2 * low.to(x.dtype)


def own(k, v):
    """Returns keys and values unchanged, for layers that have no cache."""
    return k, v


def main():
    options = measured.options_of(__doc__, 24, words=(8192, "in a batch"), layers=(LAYERS, "of the model"),
                                  dtype=("bfloat16", "of the frozen model"))
    dtype = getattr(torch, options.dtype)
    model = Llama(options.layers).requires_grad_(False).to(dtype)
    nn.init.normal_(model.words.weight, std=0.02)
    for layer in model.layers:
        for name in ("q", "kv", "out", "gate_up", "down"):
            setattr(layer, name, Low(getattr(layer, name)))
    model.to(options.device)
    tuned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(tuned, lr=2e-4)
    draw = random.Random(0)

    def step(_):
        length = min(8 * draw.randint(8, MOST // 8), options.words)
        tokens = torch.randint(WORDS, (max(1, options.words // length), length + 1)).to(options.device)
        turn = tuple(table[:length].to(dtype) for table in (model.cos, model.sin))
        x = model.words(tokens[:, :-1]).requires_grad_()
        for layer in model.layers:
            x = checkpoint(layer, x, turn, own, None, use_reentrant=False)
        logits = (model.norm(x) @ model.words.weight.t()).float()
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(tuned, 1.0)
        optimizer.step()
        return loss.item()

    measured.measure("lora", step, options)


if __name__ == "__main__":
    main()
