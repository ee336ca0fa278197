# SPDX-License-Identifier: MIT
"""PyTorch: training of a model the size of GPT-2 small on random tokens, all sequences of one length,
or each batch of another."""

import random

import common
import torch
import torch.nn as nn
import torch.nn.functional as functional
import torch_common

LAYERS, HEADS, WIDTH, WORDS, LENGTH, BATCH = 12, 12, 768, 50257, 1024, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (part.view(batch, length, HEADS, -1).transpose(1, 2)
                   for part in self.qkv(self.norm1(x)).split(WIDTH, dim=2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.places(places)
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.words.weight.t()


def main():
    options = common.arguments(40, lengths=("fixed", "fixed or varying"))
    torch_common.choose_allocator()
    torch.manual_seed(0)
    lengths = random.Random(0)
    model = Model().cuda()
    device = common.Device()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(WORDS, (BATCH, LENGTH + 1)).cuda()
    last = [0.0]

    def iterate(_):
        length = LENGTH if options.lengths == "fixed" else lengths.randint(64, LENGTH)
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(tokens[:, :length])
            loss = functional.cross_entropy(logits.flatten(0, 1),
                                            tokens[:, 1:length + 1].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        last[0] = loss.item()
        torch.cuda.synchronize()

    times = common.measure(iterate, options.iterations, device)
    common.report("torch-gpt2-" + options.lengths, times, device, torch_common.peak(), last[0],
                  **torch_common.facts())


main()
