#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch: trains a mixture of experts.  In each iteration a router chooses the sizes of the tensors.

With --compile, the choice of the router is not compiled.  Each expert is compiled for any number of rows."""

import torch
import torch.nn.functional as functional
from torch import nn

import measured

WIDTH, EXPERTS, CHOSEN, LAYERS = 1024, 16, 2, 6


class Experts(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.norm, self.router = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
                                     for _ in range(EXPERTS))
        self.run = [measured.maybe_compiled(expert, options, dynamic=True) for expert in self.experts]

    def forward(self, x):
        rows = self.norm(x)
        weights, chosen = self.router(rows).softmax(-1).topk(CHOSEN)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.run):
            row, column = (chosen == i).nonzero(as_tuple=True)
            if row.numel():
                got = expert(rows[row]) * weights[row, column, None].to(rows.dtype)
                out = out.index_add(0, row, got.to(out.dtype))
        return x + out


def main():
    options = measured.options_of(__doc__, 40, rows=(16384, "in a batch"), layers=(LAYERS, "of experts"))
    if options.compile:
        torch._dynamo.config.recompile_limit = 512
        torch._inductor.config.triton.cudagraph_skip_dynamic_graphs = True  # no graph for each number of rows
    model = nn.ModuleList(Experts(options) for _ in range(options.layers)).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    draw = torch.Generator().manual_seed(0)

    def step(_):
        rows = int(options.rows * (0.5 + 0.5 * torch.rand((), generator=draw).item()))
        x = torch.randn(rows, WIDTH, generator=draw).to(options.device)
        with torch.autocast(options.device, torch.bfloat16):
            y = x
            for layer in model:
                y = layer(y)
            loss = functional.mse_loss(y.float(), x.roll(1, 0))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    measured.measure("moe", step, options)


if __name__ == "__main__":
    main()
