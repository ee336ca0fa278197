#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch: a model like Llama answers prompts of varying lengths, one batch in each iteration.

Without --compile, the memory for keys and values grows with each token, as in many programs.  With --compile, keys and
values have fixed memory from the start, and the step for one token is a CUDA graph."""

import random

import torch
import torch.nn.functional as functional
from torch import nn

import measured

WORDS, WIDTH, HEADS, GROUPS, LAYERS, MOST = 32000, 2048, 16, 4, 12, 1024
HEAD = WIDTH // HEADS


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.kv = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 2 * GROUPS * HEAD, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate_up = nn.Linear(WIDTH, 8 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x, turn, cache, mask):
        batch, length, _ = x.shape
        y = self.norm1(x)
        q = rotated(self.q(y).view(batch, length, HEADS, HEAD).transpose(1, 2), turn)
        k, v = (part.view(batch, length, GROUPS, HEAD).transpose(1, 2) for part in self.kv(y).chunk(2, -1))
        k, v = cache(rotated(k, turn), v)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True,
                                                    is_causal=mask is None and length > 1)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


def rotated(x, turn):
    cos, sin = turn
    one, other = x.chunk(2, -1)
    return torch.cat([one * cos - other * sin, other * cos + one * sin], -1)


class Llama(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm = nn.RMSNorm(WIDTH)
        angles = torch.outer(torch.arange(MOST), 10000.0 ** (-torch.arange(0, HEAD, 2) / HEAD))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens, places, caches, mask=None):
        x = self.words(tokens)
        turn = self.cos[places].to(x.dtype), self.sin[places].to(x.dtype)
        for layer, cache in zip(self.layers, caches):
            x = layer(x, turn, cache, mask)
        return self.norm(x[:, -1:]) @ self.words.weight.t()


class Growing:
    """The keys and values of a layer.  They move to new memory with each token."""

    def __init__(self):
        self.k = self.v = None

    def __call__(self, k, v):
        if self.k is not None:
            k, v = torch.cat([self.k, k], 2), torch.cat([self.v, v], 2)
        self.k, self.v = k, v
        return k, v


class Static(nn.Module):
    """The keys and values of a layer in fixed memory.  `place' is the index at which the next ones are stored."""

    def __init__(self, batch, place, dtype):
        super().__init__()
        self.register_buffer("k", torch.zeros(batch, GROUPS, MOST, HEAD, device=place.device, dtype=dtype))
        self.register_buffer("v", torch.zeros_like(self.k))
        self.place = place

    def forward(self, k, v):
        self.k.index_copy_(2, self.place[:k.shape[2]], k)
        self.v.index_copy_(2, self.place[:k.shape[2]], v)
        return self.k, self.v


def main():
    options = measured.options_of(__doc__, 16, batch=(16, "prompts in a batch"), layers=(LAYERS, "of the model"),
                                  words=(64, "of an answer"))
    dtype = torch.bfloat16
    model = Llama(options.layers).to(options.device, dtype).eval().requires_grad_(False)
    draw = random.Random(0)
    half = options.iterations // 2
    lengths = [draw.randint(32, MOST - options.words - 1) for _ in range(half)]
    lengths += [*draw.sample(lengths, half), *[MOST // 2] * (options.iterations - 2 * half)]
    place = torch.zeros(1, dtype=torch.long, device=options.device)
    all_places = torch.arange(MOST, device=options.device)
    static = nn.ModuleList(Static(options.batch, place, dtype) for _ in range(options.layers)) if options.compile else None

    def word(tokens):
        """Computes one token after those in the static caches."""
        return model(tokens, place, static, (all_places <= place)[None, None, None])

    fast = measured.maybe_compiled(word, options)

    def prompt(tokens):
        caches = [Growing() for _ in range(options.layers)]
        logits = model(tokens, all_places[:tokens.shape[1]], caches)
        return logits, caches

    @torch.no_grad()
    def step(i):
        tokens = torch.randint(WORDS, (options.batch, lengths[i]), generator=torch.Generator().manual_seed(i))
        logits, caches = prompt(tokens.to(options.device))
        if static:
            for cache, grown in zip(static, caches):
                cache.k[:, :, :lengths[i]], cache.v[:, :, :lengths[i]] = grown.k, grown.v
            del caches
        for n in range(lengths[i], lengths[i] + options.words):
            tokens = logits[:, -1].argmax(-1, keepdim=True)
            if static:
                place.fill_(n)
                torch.compiler.cudagraph_mark_step_begin()
                logits = fast(tokens)
            else:
                logits = model(tokens, all_places[n:n + 1], caches)
        return logits.float().abs().mean().item()

    measured.measure("llama", step, options)


if __name__ == "__main__":
    main()
