#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch: trains a graph network (MeshGraphNet) on batches of graphs of very different sizes.

Each step updates every edge from its two nodes, and every node from the sum of its edges.  Every few iterations, the
network is evaluated on a large graph that is not in the training data."""

import random

import torch
from torch import nn

import measured

STEPS, FEATURES, NEIGHBOURS = 8, 12, 8


def perceptron(inside, width):
    return nn.Sequential(nn.Linear(inside, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                         nn.Linear(width, width), nn.LayerNorm(width))


class Network(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.nodes_in, self.edges_in = perceptron(FEATURES, width), perceptron(4, width)
        self.edges = nn.ModuleList(perceptron(3 * width, width) for _ in range(STEPS))
        self.nodes = nn.ModuleList(perceptron(2 * width, width) for _ in range(STEPS))
        self.out = nn.Linear(width, 3)

    def forward(self, nodes, edges, ends):
        nodes, edges = self.nodes_in(nodes), self.edges_in(edges)
        for of_edges, of_nodes in zip(self.edges, self.nodes):
            edges = edges + of_edges(torch.cat([edges, nodes[ends[0]], nodes[ends[1]]], 1))
            sums = torch.zeros_like(nodes, dtype=edges.dtype).index_add(0, ends[1], edges)
            nodes = nodes + of_nodes(torch.cat([nodes, sums], 1))
        return self.out(nodes)


def graph_of(count, draw, device):
    """Returns the features of nodes and edges, and the two end nodes of each edge.

    The end nodes of an edge are close to each other in a random order of all nodes."""
    ends = torch.randint(count, (1, NEIGHBOURS * count), generator=draw)
    other = (ends + torch.randint(1, 65, ends.shape, generator=draw)) % count
    ends = torch.cat([ends, other])[:, torch.rand(ends.shape[1], generator=draw) < 0.75]  # leaves out a quarter
    ends = torch.cat([ends, ends.flip(0)], 1).to(device)
    places = torch.rand(count, 3, generator=draw).to(device)
    nodes = torch.cat([places, torch.randn(count, FEATURES - 3, generator=draw).to(device)], 1)
    away = places[ends[1]] - places[ends[0]]
    return nodes, torch.cat([away, away.norm(dim=1, keepdim=True)], 1), ends


def main():
    options = measured.options_of(__doc__, 60, nodes=(2000, "of a graph, about"), graphs=(8, "in a batch"),
                                  width=(128, "of the features"))
    model = Network(options.width).to(options.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    draw, bits = random.Random(0), torch.Generator().manual_seed(0)

    def made(graphs):
        counts = [int(options.nodes * draw.lognormvariate(0, 0.5)) + 65 for _ in range(graphs)]
        parts = [graph_of(count, bits, options.device) for count in counts]
        before = [sum(counts[:i]) for i in range(graphs)]
        nodes, edges, ends = zip(*parts)
        return torch.cat(nodes), torch.cat(edges), torch.cat([part + first for part, first in zip(ends, before)], 1)

    def step(i):
        nodes, edges, ends = made(options.graphs)
        with torch.autocast("cuda", torch.bfloat16):
            got = model(nodes, edges, ends)
        loss = (got.float() - nodes[:, :3].roll(1, 0)).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if i % 8 == 7:
            with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
                model(*made(4 * options.graphs)).argmax(1).cpu()
        return loss.item()

    measured.measure("graph", step, options)


if __name__ == "__main__":
    main()
