#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch: trains a vision transformer (ViT-B/16) on random images and keeps a moving average of its parameters
(EMA)."""

import copy

import torch
import torch.nn.functional as functional
from torch import nn

import measured
from torch_model import Block

WIDTH, HEADS, LAYERS, PATCH, CLASSES = 768, 12, 12, 16, 1000


class Encoder(Block):
    """A block of bench/drop-in whose attention sees the tokens on both sides."""

    causal = False


class Vit(nn.Module):
    def __init__(self, side, layers):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.first = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.places = nn.Parameter(torch.randn(1, (side // PATCH) ** 2 + 1, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(Encoder(HEADS, WIDTH) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def main():
    options = measured.options_of(__doc__, 60, batch=(64, "images in a batch"), side=(224, "of an image"),
                                  layers=(LAYERS, "of the model"))
    model = Vit(options.side, options.layers).to(options.device)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05)
    images = torch.randn(options.batch, 3, options.side, options.side, pin_memory=options.device != "cpu")
    labels = torch.randint(CLASSES, (options.batch,)).to(options.device)
    run = measured.maybe_compiled(model, options)

    def step(_):
        batch = images.to(options.device, non_blocking=True)
        with torch.autocast(options.device, torch.bfloat16):
            loss = functional.cross_entropy(run(batch), labels, label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.001)
        return loss.item()

    measured.measure("vit-ema", step, options)


if __name__ == "__main__":
    main()
