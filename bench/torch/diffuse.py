#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch: trains a diffusion model and keeps a moving average of its parameters (EMA).  Makes images now and then.

Latents have one of several shapes, all with nearly equal areas.  Every few iterations the averaged model makes images
in some steps with guidance, and a decoder enlarges them eight times."""

import copy
import random

import torch
import torch.nn.functional as functional
from torch import nn

import measured

SHAPES = (64, 64), (56, 72), (72, 56), (48, 80), (80, 48)
CHANNELS, TIMES, TEXT, WORDS, DRAWN = 4, 1000, 768, 77, 4


class Part(nn.Module):
    """A block of two convolutions that get the time as an input.  If it has heads, attention to all places and to a
    text follows."""

    def __init__(self, inside, outside, time, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, inside), nn.GroupNorm(32, outside)
        self.one, self.two = nn.Conv2d(inside, outside, 3, padding=1), nn.Conv2d(outside, outside, 3, padding=1)
        self.time, self.aside, self.heads = nn.Linear(time, outside), nn.Conv2d(inside, outside, 1), heads
        if heads:
            self.norm3, self.norm4 = nn.LayerNorm(outside), nn.LayerNorm(outside)
            self.qkv, self.text = nn.Linear(outside, 3 * outside), nn.Linear(TEXT, 2 * outside)
            self.up, self.down = nn.Linear(outside, 8 * outside), nn.Linear(4 * outside, outside)

    def forward(self, x, time, text):
        y = self.one(functional.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        x = self.aside(x) + self.two(functional.silu(self.norm2(y)))
        if not self.heads:
            return x
        y = x.flatten(2).transpose(1, 2)
        q, k, v = self.qkv(self.norm3(y)).chunk(3, 2)
        k, v = (torch.cat(both, 1) for both in zip((k, v), self.text(text).chunk(2, 2)))
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        y = y + functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        up, gate = self.up(self.norm4(y)).chunk(2, 2)
        return (y + self.down(up * functional.gelu(gate))).transpose(1, 2).reshape(x.shape)


class Unet(nn.Module):
    def __init__(self, width):
        super().__init__()
        widths, self.width = (width, 2 * width, 4 * width), width
        self.first, self.last = nn.Conv2d(CHANNELS, width, 3, padding=1), nn.Conv2d(width, CHANNELS, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width), nn.SiLU())
        heads = 0, 8, 16
        self.down = nn.ModuleList(Part(a, b, 4 * width, h) for a, b, h in zip((width, *widths), widths, heads))
        self.middle = Part(4 * width, 4 * width, 4 * width, 16)
        self.up = nn.ModuleList(Part(2 * b, a, 4 * width, h) for a, b, h in list(zip((width, *widths), widths, heads))[::-1])

    def forward(self, x, times, text):
        angles = times[:, None] * 10000.0 ** (-torch.arange(self.width // 2, device=x.device) / (self.width // 2))
        time, kept = self.time(torch.cat([angles.sin(), angles.cos()], 1)), []
        x = self.first(x)
        for i, part in enumerate(self.down):
            x = part(functional.avg_pool2d(x, 2) if i else x, time, text)
            kept.append(x)
        x = self.middle(x, time, text)
        for part in self.up:
            other = kept.pop()
            x = part(torch.cat([functional.interpolate(x, size=other.shape[-2:]), other], 1), time, text)
        return self.last(x)


def main():
    options = measured.options_of(__doc__, 40, batch=(32, "latents in a batch"), width=(256, "channels of the first level"),
                                  shrink=(1, "divides the sides of latents"), steps=(8, "in which images are made"))
    model = Unet(options.width).to(options.device)
    average = copy.deepcopy(model).requires_grad_(False)
    decoder = nn.Sequential(nn.Conv2d(CHANNELS, 256, 3, padding=1), nn.SiLU(), nn.Upsample(scale_factor=4),
                            nn.Conv2d(256, 64, 3, padding=1), nn.SiLU(), nn.Upsample(scale_factor=2),
                            nn.Conv2d(64, 3, 3, padding=1)).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    draw, known = random.Random(0), torch.linspace(0.9999, 0.01, TIMES).to(options.device)

    def noise(batch, shape):
        return torch.randn(batch, CHANNELS, *(side // options.shrink for side in shape)).to(options.device)

    @torch.inference_mode()
    def drawn(shape):
        x, text = noise(DRAWN, shape), torch.randn(2 * DRAWN, WORDS, TEXT).to(options.device)
        for time in torch.linspace(TIMES - 1, 1, options.steps).long().tolist():
            one, other = average(torch.cat([x, x]), torch.full((2 * DRAWN,), time, device=x.device), text).chunk(2)
            x = x - (other + 7.5 * (one - other)) / options.steps
        return decoder(x).float().clamp(-1, 1).to("cpu")

    def step(i):
        shape = draw.choice(SHAPES)
        with torch.autocast("cuda", torch.bfloat16):
            x, wanted = noise(options.batch, shape), noise(options.batch, shape)
            times = torch.randint(TIMES, (options.batch,)).to(options.device)
            part = known[times][:, None, None, None]
            text = torch.randn(options.batch, WORDS, TEXT).to(options.device)
            loss = functional.mse_loss(model(part.sqrt() * x + (1 - part).sqrt() * wanted, times, text).float(), wanted)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            torch._foreach_lerp_(list(average.parameters()), [p.detach() for p in model.parameters()], 0.001)
            if i % 10 == 9:
                drawn(shape)
        return loss.item()

    measured.measure("diffuse", step, options)


if __name__ == "__main__":
    main()
