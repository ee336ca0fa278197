#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch: a model of the size of BERT base serves requests with varying batches and lengths.  An iteration consists of
several requests.

With --compile, batches are padded to powers of two and lengths to multiples of 64, as servers do."""

import random

import torch
import torch.nn.functional as functional
from torch import nn

import measured

WORDS, WIDTH, HEADS, LAYERS, MOST, REQUESTS = 30522, 768, 12, 12, 512, 16


class Bert(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(MOST, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(nn.ModuleDict({
            "qkv": nn.Linear(WIDTH, 3 * WIDTH), "out": nn.Linear(WIDTH, WIDTH), "norm1": nn.LayerNorm(WIDTH),
            "up": nn.Linear(WIDTH, 4 * WIDTH), "down": nn.Linear(4 * WIDTH, WIDTH), "norm2": nn.LayerNorm(WIDTH),
        }) for _ in range(layers))
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, tokens, there):
        batch, length = tokens.shape
        x = self.norm(self.words(tokens) + self.places.weight[:length])
        mask = there[:, None, None]
        for layer in self.layers:
            q, k, v = (part.view(batch, length, HEADS, -1).transpose(1, 2) for part in layer["qkv"](x).chunk(3, -1))
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            x = layer["norm1"](x + layer["out"](y.transpose(1, 2).reshape(batch, length, WIDTH)))
            x = layer["norm2"](x + layer["down"](functional.gelu(layer["up"](x))))
        return self.head(x[:, 0])


def padded(batch, length):
    return 1 << (batch - 1).bit_length(), -(-length // 64) * 64


def main():
    options = measured.options_of(__doc__, 60, most=(32, "requests in a batch at most"), layers=(LAYERS, "of the model"),
                                  dtype=("float16", "of the model"))
    model = Bert(options.layers).to(options.device, getattr(torch, options.dtype)).eval()
    run = measured.maybe_compiled(model, options, dynamic=True)  # one CUDA graph for each shape
    draw = random.Random(0)
    new = [[(draw.randint(1, options.most), draw.randint(8, MOST)) for _ in range(REQUESTS)]
           for _ in range(options.iterations - options.iterations // 2)]
    work = new + draw.sample(new, options.iterations // 2)

    @torch.inference_mode()
    def step(i):
        total = 0.0
        for batch, length in work[i]:
            rows, columns = padded(batch, length) if options.compile else (batch, length)
            tokens = torch.randint(WORDS, (rows, columns), generator=torch.Generator().manual_seed(length))
            there = torch.arange(columns).expand(rows, -1) < length
            if options.compile:
                torch.compiler.cudagraph_mark_step_begin()
            scores = run(tokens.to(options.device), there.to(options.device))
            total += scores[:batch].float().softmax(-1)[:, 0].sum().item()
        return total

    measured.measure("bert", step, options)


if __name__ == "__main__":
    main()
