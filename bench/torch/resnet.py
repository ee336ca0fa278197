#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch: trains ResNet-50 on random images.  Every few iterations, evaluates images of another size."""

import torch
import torch.nn.functional as functional
from torch import nn

import measured

STAGES = (3, 64), (4, 128), (6, 256), (3, 512)  # for each stage: the number of blocks, and their width
SIDES = 224, 192, 256, 288


def convolution(inside, outside, side, stride=1):
    return nn.Sequential(nn.Conv2d(inside, outside, side, stride, side // 2, bias=False), nn.BatchNorm2d(outside))


class Bottleneck(nn.Module):
    def __init__(self, inside, width, stride):
        super().__init__()
        self.first, self.second = convolution(inside, width, 1), convolution(width, width, 3, stride)
        self.third = convolution(width, 4 * width, 1)
        same = inside == 4 * width and stride == 1
        self.aside = nn.Identity() if same else convolution(inside, 4 * width, 1, stride)

    def forward(self, x):
        y = functional.relu(self.second(functional.relu(self.first(x))))
        return functional.relu(self.third(y) + self.aside(x))


class Resnet(nn.Sequential):
    def __init__(self):
        parts, inside = [convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
        for number, (blocks, width) in enumerate(STAGES):
            for i in range(blocks):
                parts.append(Bottleneck(inside, width, 2 if number and i == 0 else 1))
                inside = 4 * width
        super().__init__(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))


def main():
    options = measured.options_of(__doc__, 60, batch=(128, "images in a batch"))
    model = Resnet().to(options.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run = measured.maybe_compiled(model, options, dynamic=False)
    labels = torch.randint(1000, (options.batch,)).to(options.device)

    def images(batch, side):
        made = torch.randn(batch, 3, side, side, device=options.device)
        return made.contiguous(memory_format=torch.channels_last)

    def step(i):
        with torch.autocast(options.device, torch.bfloat16):
            loss = functional.cross_entropy(run(images(options.batch, 224)), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if i % 5 == 4:
            model.eval()
            with torch.inference_mode(), torch.autocast(options.device, torch.bfloat16):
                model(images(options.batch // 2, SIDES[i // 5 % len(SIDES)]))
            model.train()
        return loss.item()

    measured.measure("resnet", step, options)


if __name__ == "__main__":
    main()
