# SPDX-License-Identifier: MIT
"""torch_model.py: a language model with the architecture of GPT-2."""

import torch
import torch.nn as nn
import torch.nn.functional as functional

WORDS, LENGTH = 50257, 1024
SIZES = {"tiny": (2, 2, 64), "small": (12, 12, 768), "medium": (24, 16, 1024),
         "1.3b": (24, 16, 2048)}  # layers, heads, width


class Block(nn.Module):
    causal = True

    def __init__(self, heads, width):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2)
                   for part in self.qkv(self.norm1(x)).split(width, dim=2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        layers, heads, width = SIZES[size]
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(heads, width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.places(places)
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.words.weight.t()


def loss_of(model, tokens):
    """Returns the loss of a model that predicts each token from the tokens before it."""
    with torch.autocast("cuda", torch.bfloat16):
        logits = model(tokens[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
