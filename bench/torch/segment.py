#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch: trains a segmentation network (U-Net) on crops of several sizes, and segments whole images in between.

The sizes of the crops vary between iterations.  Each whole image has a new size and is cut into overlapping tiles.  The
scores of the tiles are added up in one image."""

import random

import torch
import torch.nn.functional as functional
from torch import nn

import measured

CLASSES, LEVELS, SIDES = 21, 5, (0.75, 0.875, 1.0, 1.125)


def twice(inside, outside):
    return nn.Sequential(*[part for width in (inside, outside) for part in (
        nn.Conv2d(width, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(inplace=True))])


class Unet(nn.Module):
    def __init__(self, width):
        super().__init__()
        widths = [width << i for i in range(LEVELS)]
        self.down = nn.ModuleList(twice(inside, outside) for inside, outside in zip([3, *widths], widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * width, width, 2, 2) for width in widths[-2::-1])
        self.join = nn.ModuleList(twice(2 * width, width) for width in widths[-2::-1])
        self.heads = nn.ModuleList(nn.Conv2d(width, CLASSES, 1) for width in widths[-2::-1])

    def forward(self, x):
        """Returns the scores of each level.  The scores of the last level are as large as the image."""
        kept, scores = [], []
        for i, down in enumerate(self.down):
            x = down(x if i == 0 else functional.max_pool2d(x, 2))
            kept.append(x)
        for up, join, head, other in zip(self.up, self.join, self.heads, kept[-2::-1]):
            x = join(torch.cat([up(x), other], 1))
            scores.append(head(x))
        return scores


def loss_of(scores, labels):
    """Returns the loss: the cross entropy of the last two levels, plus the Dice loss of the last level."""
    loss = 0.0
    for level in scores[-2:]:
        whole = functional.interpolate(level.float(), size=labels.shape[-2:], mode="bilinear")
        loss = loss + functional.cross_entropy(whole, labels)
    wanted = functional.one_hot(labels, CLASSES).permute(0, 3, 1, 2)
    got = whole.softmax(1)
    return loss + 1 - (2 * (got * wanted).sum((0, 2, 3)) / (got + wanted).sum((0, 2, 3))).mean()


def main():
    options = measured.options_of(__doc__, 40, batch=(8, "crops in a batch"), side=(512, "of a usual crop"),
                                  width=(64, "channels of the first level"))
    model = Unet(options.width).to(options.device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    draw = random.Random(0)

    @torch.inference_mode()
    def whole(height, width):
        image = torch.randn(3, height, width).to(options.device)
        total = torch.zeros(CLASSES, height, width, device=options.device)
        for y in range(0, height - options.side // 2, options.side // 2):
            for x in range(0, width - options.side // 2, options.side // 2):
                tile = image[:, y:y + options.side, x:x + options.side]
                padded = functional.pad(tile, (0, options.side - tile.shape[2], 0, options.side - tile.shape[1]))
                total[:, y:y + options.side, x:x + options.side] += model(padded[None])[-1][0, :, :tile.shape[1], :tile.shape[2]]
        return total.argmax(0).to("cpu")

    def step(i):
        side = int(options.side * draw.choice(SIDES))
        images = torch.randn(options.batch, 3, side, side).to(options.device, memory_format=torch.channels_last)
        labels = torch.randint(CLASSES, (options.batch, side, side)).to(options.device)
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if i % 8 == 7:
            model.eval()
            with torch.autocast("cuda", torch.bfloat16):
                whole(*(draw.randint(options.side, 3 * options.side) for _ in range(2)))
            model.train()
        return loss.item()

    measured.measure("segment", step, options)


if __name__ == "__main__":
    main()
