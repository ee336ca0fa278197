#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch: trains a two-stage object detector on images of varying sizes with varying numbers of objects.

The backbone is ResNet-50 with a feature pyramid.  A first head scores each location of the pyramid and predicts a
box there.  A second head classifies the best boxes and the boxes of the objects.  All images of a batch are padded
to the size of the largest one.  The second half of the iterations uses the batches of the first half again, in
another order."""

import random

import torch
import torch.nn.functional as functional
from torch import nn

import measured
from resnet import Resnet

WIDTH, CLASSES, STRIDES, BINS = 256, 80, (8, 16, 32), 7


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        parts = list(Resnet())
        self.stages = nn.ModuleList(nn.Sequential(*parts[a:b]) for a, b in ((0, 10), (10, 16), (16, 19)))
        self.aside = nn.ModuleList(nn.Conv2d(width, WIDTH, 1) for width in (512, 1024, 2048))
        self.first = nn.Sequential(*[part for _ in range(4) for part in (
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.GroupNorm(32, WIDTH), nn.ReLU())])
        self.scores_and_boxes = nn.Conv2d(WIDTH, 5, 3, padding=1)
        self.second = nn.Sequential(nn.Linear(WIDTH * BINS * BINS, 1024), nn.ReLU(), nn.Linear(1024, CLASSES + 1))

    def forward(self, x):
        """Returns the largest level of the pyramid, and the scores, boxes and places of all locations."""
        levels, found, places = [], [], []
        for stage, aside in zip(self.stages, self.aside):
            x = stage(x)
            levels.append(aside(x))
        for i in (1, 0):
            levels[i] = levels[i] + functional.interpolate(levels[i + 1], size=levels[i].shape[-2:])
        for level, stride in zip(levels, STRIDES):
            found.append(self.scores_and_boxes(self.first(level)).flatten(2).mT.float())
            y, x = (stride * (torch.arange(side, device=x.device) + 0.5) for side in level.shape[-2:])
            places.append(torch.cartesian_prod(y, x).flip(1))
        found = torch.cat(found, 1)
        return levels[0], found[..., 0], 64 * functional.softplus(found[..., 1:]), torch.cat(places)

    def loss_of(self, images, objects, most):
        """Returns the loss of a batch.  The objects of an image are boxes (left, top, right, bottom) and classes."""
        level, scores, boxes, places = self(images)
        loss = 0.0
        for i, (wanted, classes) in enumerate(objects):
            sides = torch.cat([places[:, None] - wanted[:, :2], wanted[:, 2:] - places[:, None]], 2)
            depth, which = sides.amin(2).max(1)
            row = (depth > 0).nonzero()[:, 0]
            loss = loss + functional.binary_cross_entropy_with_logits(scores[i], (depth > 0).float())
            loss = loss + functional.smooth_l1_loss(boxes[i, row] / 64, sides[row, which[row]] / 64)
            best = scores[i].topk(min(most, len(places))).indices
            made = torch.cat([places[best] - boxes[i, best, :2], places[best] + boxes[i, best, 2:]], 1).detach()
            pooled = pooled_of(level[i:i + 1].float(), torch.cat([made, wanted]), images.shape[-2:])
            chosen = torch.where(depth[best] > 0, classes[which[best]], CLASSES)
            loss = loss + functional.cross_entropy(self.second(pooled).float(), torch.cat([chosen, classes]))
        return loss / len(objects)


def pooled_of(level, boxes, size):
    """Returns a grid of BINS x BINS features for each box."""
    steps = (torch.arange(BINS, device=boxes.device) + 0.5) / BINS
    x, y = (boxes[:, i, None] + (boxes[:, i + 2] - boxes[:, i])[:, None] * steps for i in (0, 1))
    grid = torch.stack([(2 * x / size[1] - 1)[:, None].expand(-1, BINS, -1),
                        (2 * y / size[0] - 1)[:, :, None].expand(-1, -1, BINS)], 3)
    pooled = functional.grid_sample(level, grid.view(1, -1, BINS, 2), align_corners=False)
    return pooled.view(WIDTH, -1, BINS * BINS).transpose(0, 1).flatten(1)


def main():
    options = measured.options_of(__doc__, 32, batch=(6, "images in a batch"), side=(800, "of an image at most"),
                                  proposals=(512, "boxes that the second head sees"))
    model = Detector().to(options.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    draw, half = random.Random(0), options.iterations // 2
    unit = options.side // 25  # the height and the width of a batch are multiples of this
    new = [(unit * draw.randint(15, 25), unit * draw.randint(18, 40)) for _ in range(options.iterations - half)]
    work = new + draw.sample(new, half)

    def objects_of(height, width):
        count = 1 + int(draw.expovariate(0.1))
        boxes = torch.rand(2, count, 2).sort(0).values.transpose(0, 1).flatten(1) * torch.tensor([width, height] * 2)
        return boxes.to(options.device), torch.randint(CLASSES, (count,)).to(options.device)

    def step(i):
        images = torch.randn(options.batch, 3, *work[i]).to(options.device, memory_format=torch.channels_last)
        objects = [objects_of(*work[i]) for _ in images]
        with torch.autocast("cuda", torch.bfloat16):
            loss = model.loss_of(images, objects, options.proposals)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        return loss.item()

    measured.measure("detect", step, options)


if __name__ == "__main__":
    main()
