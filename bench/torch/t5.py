#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch: trains an encoder and decoder of the size of T5 base, and generates texts by beam search now and then.

Lengths vary between iterations.  Attention is written out with a bias for each distance, as T5 needs it.  During the
search, keys and values grow with each token and follow their beams."""

import math
import random

import torch
import torch.nn.functional as functional
from torch import nn

import measured

WORDS, WIDTH, HEADS, LAYERS, BUCKETS, BEAMS = 32128, 768, 12, 12, 32, 4


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.q, self.kv, self.out = (nn.Linear(WIDTH, n * WIDTH, bias=False) for n in (1, 2, 1))

    def keys(self, x):
        return [part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in self.kv(x).chunk(2, 2)]

    def forward(self, x, keys=None, bias=0.0, cache=None):
        """Attends to the keys and values of another sequence.  Without them, attends to its own keys and values,
        appended to those of the cache."""
        y = self.norm(x)
        k, v = keys or self.keys(y)
        if cache is not None:
            k, v = (torch.cat([old, new], 2) for old, new in zip(cache, (k, v))) if cache else (k, v)
            cache[:] = k, v
        scores = self.q(y).unflatten(2, (HEADS, -1)).transpose(1, 2) @ k.mT + bias
        weights = functional.dropout(scores.float().softmax(-1).to(v.dtype), 0.1, self.training)
        return x + self.out((weights @ v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, is_decoder):
        super().__init__()
        self.own, self.other = Attention(), Attention() if is_decoder else None
        self.norm, self.up, self.down = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, bias, keys=None, cache=None):
        x = self.own(x, None, bias, cache)
        x = self.other(x, keys) if self.other else x
        return x + self.down(functional.dropout(functional.relu(self.up(self.norm(x))), 0.1, self.training))


class T5(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, WIDTH), nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        nn.init.normal_(self.words.weight, std=0.05)
        self.distances = nn.ModuleList(nn.Embedding(BUCKETS, HEADS) for _ in range(2))
        self.layers = nn.ModuleList(nn.ModuleList(Layer(part) for _ in range(layers)) for part in (False, True))

    def bias(self, part, length, asked):
        """Returns the attention bias between the last `asked' of `length' tokens and all tokens.

        In the decoder, later tokens are masked out."""
        places = torch.arange(length, device=self.words.weight.device)
        away = places[None] - places[length - asked:, None]
        bias = self.distances[part]((4 * (away.abs() + 1.0).log2()).long().clamp(max=BUCKETS - 1)).permute(2, 0, 1)[None]
        return bias.masked_fill(away > 0, -math.inf) if part else bias

    def encode(self, tokens):
        x, bias = self.words(tokens), self.bias(0, tokens.shape[1], tokens.shape[1])
        for layer in self.layers[0]:
            x = layer(x, bias)
        return [layer.other.keys(self.norm[0](x)) for layer in self.layers[1]]

    def decode(self, tokens, keys, caches=None, before=0):
        x, bias = self.words(tokens), self.bias(1, before + tokens.shape[1], tokens.shape[1])
        for i, layer in enumerate(self.layers[1]):
            x = layer(x, bias, keys[i], caches[i] if caches else None)
        return self.norm[1](x) @ self.words.weight.t()


@torch.inference_mode()
def search(model, tokens, words):
    keys = [[x.repeat_interleave(BEAMS, 0) for x in pair] for pair in model.encode(tokens)]
    batch, caches = len(tokens), [[] for _ in keys]
    texts, scores = tokens.new_zeros(batch * BEAMS, 1), torch.zeros(batch, BEAMS, device=tokens.device)
    for n in range(words):
        logits = model.decode(texts[:, -1:], keys, caches, n)[:, -1].float()
        scores, best = (scores[..., None] + logits.log_softmax(-1).view(batch, BEAMS, -1)).flatten(1).topk(BEAMS)
        beams = (best // WORDS + BEAMS * torch.arange(batch, device=tokens.device)[:, None]).flatten()
        texts = torch.cat([texts[beams], (best % WORDS).view(-1, 1)], 1)
        for cache in caches:
            cache[:] = [x[beams] for x in cache]
    return texts.cpu()


def main():
    options = measured.options_of(__doc__, 30, batch=(12, "texts in a batch"), layers=(LAYERS, "of either part"),
                                  most=(512, "words of a text"), words=(24, "that are generated"))
    model = T5(options.layers).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    draw = random.Random(0)

    def step(i):
        long, short = draw.randint(options.most // 8, options.most), draw.randint(options.most // 16, options.most // 4)
        tokens, wanted = (torch.randint(WORDS, (options.batch, n)).to(options.device) for n in (long, short + 1))
        with torch.autocast("cuda", torch.bfloat16):
            logits = model.decode(wanted[:, :-1], model.encode(tokens))
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), wanted[:, 1:].flatten(), label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if i % 5 == 4:
            model.eval()
            with torch.autocast("cuda", torch.bfloat16):
                search(model, tokens[:options.batch // 2], options.words)
            model.train()
        return loss.item()

    measured.measure("t5", step, options)


if __name__ == "__main__":
    main()
