# SPDX-License-Identifier: MIT
"""torch.compile, with CUDA graphs and without, and kernels of Triton.

mode="reduce-overhead" is what asks an allocator most: trees of graphs, checkpoints of a pool, live outputs."""

import copy

import torch
import torch.nn.functional as functional
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import cudagraph_trees
from torch.utils.checkpoint import checkpoint

from .support import DEVICE, MIB, Skip, block, close, feature, holds, net, settle

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

COMPILES = 240  # seconds


def fresh():
    torch._dynamo.reset()
    counters.clear()
    settle()


def with_graphs(function, **options):
    return torch.compile(function, mode="reduce-overhead", **options)


def graphs_were_used():
    assert counters["inductor"]["cudagraph_skips"] == 0, "PyTorch left CUDA graphs out"
    manager = cudagraph_trees.get_container(torch.cuda.current_device()).tree_manager
    assert manager is not None and manager.new_graph_id().id > 0, "no graph was captured"


def step_begins():
    torch.compiler.cudagraph_mark_step_begin()


@feature(timeout=COMPILES)
def compile_default():
    fresh()
    model = net().eval()
    with torch.no_grad():
        fast = torch.compile(model)
        for rows in (64, 64, 64):
            x = torch.randn(rows, 512, device=DEVICE)
            close(fast(x), model(x), 1e-2)


@feature(timeout=COMPILES)
def compile_reduce_overhead_infer():
    fresh()
    model = net().eval()
    fast = with_graphs(model)
    with torch.no_grad():
        for _ in range(8):
            step_begins()
            x = torch.randn(64, 512, device=DEVICE)
            close(fast(x).clone(), model(x), 1e-2)
    graphs_were_used()


@feature(timeout=COMPILES)
def compile_reduce_overhead_train():
    """Losses and parameters are those of the same training without a compiler."""
    fresh()
    model = net()
    plain = copy.deepcopy(model)
    fast = with_graphs(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-2) for m in (model, plain)]
    for _ in range(10):
        step_begins()
        x, losses = torch.randn(64, 512, device=DEVICE), []
        for run, optimizer in zip((fast, plain), optimizers):
            loss = run(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        assert abs(losses[0] - losses[1]) <= 1e-2 * losses[1], losses
    graphs_were_used()
    for p, q in zip(model.parameters(), plain.parameters()):
        close(p, q, 1e-2)


@feature(timeout=COMPILES)
def compile_dynamic_shapes():
    """A graph for each of several shapes, which come again in turn."""
    fresh()
    model = net().eval()
    fast = with_graphs(model, dynamic=True)
    with torch.no_grad():
        for rows in (16, 48, 33, 16, 128, 48, 33, 16, 7, 128, 7, 7):
            step_begins()
            x = torch.randn(rows, 512, device=DEVICE)
            close(fast(x).clone(), model(x), 1e-2)
    graphs_were_used()


@feature(timeout=COMPILES)
def compile_branches_of_a_tree():
    """Paths of a program that part and come back: outputs that live on are the allocator's checkpoints."""
    fresh()
    first = with_graphs(lambda x: (x * 2).cumsum(0))
    second = with_graphs(lambda x: x.sin() + 1)
    third = with_graphs(lambda x: (x - 3).relu())
    with torch.no_grad():
        for turn in range(16):
            step_begins()
            x = torch.randn(4096, device=DEVICE)
            one = first(x)
            two = second(one) if turn % 2 else third(one)
            three = third(two) if turn % 3 else second(two)
            want_one = (x * 2).cumsum(0)
            want_two = want_one.sin() + 1 if turn % 2 else (want_one - 3).relu()
            want_three = (want_two - 3).relu() if turn % 3 else want_two.sin() + 1
            close(one, want_one, 1e-2)
            close(two, want_two, 1e-2)
            close(three, want_three, 1e-2)
            others = [block(MIB, turn) for _ in range(8)]
            if turn % 4 == 3:
                torch.cuda.empty_cache()
            assert all(holds(other, turn) for other in others)
            del one, two, three
    graphs_were_used()


@feature(timeout=COMPILES)
def compile_outputs_overwritten():
    """PyTorch tells a program that reads an output of the step before."""
    fresh()
    fast = with_graphs(lambda x: x * 2)
    kept = []
    with torch.no_grad():
        for _ in range(5):
            step_begins()
            kept.append(fast(torch.randn(1024, device=DEVICE)))
    try:
        kept[-2].sum().item()
        raise AssertionError("an overwritten output could be read")
    except RuntimeError as error:
        assert "overwritten by a subsequent run" in str(error), error


@feature(timeout=COMPILES)
def compile_memory_comes_back():
    net(1024)(torch.randn(4096, 1024, device=DEVICE))  # what libraries keep for themselves is there now
    fresh()
    before = torch.cuda.memory_allocated()
    model = net(1024).eval()
    fast = with_graphs(model)
    with torch.no_grad():
        for _ in range(5):
            step_begins()
            y = fast(torch.randn(4096, 1024, device=DEVICE)).sum().item()
    assert y == y
    graphs_were_used()
    del fast, model
    fresh()
    left = torch.cuda.memory_allocated() - before
    assert left <= MIB, f"{left} bytes are left"
    private = [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) != (0, 0)]
    assert not private, f"{len(private)} segments of graphs are left"


@feature(timeout=COMPILES)
def compile_checkpointing():
    """Activation checkpoints in a compiled training step."""
    fresh()
    layers = nn.ModuleList(net(256) for _ in range(3))
    plain = copy.deepcopy(layers)

    def forward(which, x):
        for layer in which:
            x = checkpoint(layer, x, use_reentrant=False)
        return x.square().mean()

    fast = with_graphs(lambda x: forward(layers, x))
    for _ in range(5):
        step_begins()
        x = torch.randn(256, 256, device=DEVICE)
        for which, run in ((layers, fast), (plain, lambda x: forward(plain, x))):
            which.zero_grad()
            run(x).backward()
        for p, q in zip(layers.parameters(), plain.parameters()):
            close(p.grad, q.grad, 1e-2)


@feature(timeout=COMPILES)
def compile_while_recording():
    """The record of allocations goes on while graphs are captured and replayed."""
    fresh()
    torch.cuda.memory._record_memory_history()
    try:
        model = net().eval()
        fast = with_graphs(model)
        with torch.no_grad():
            for _ in range(5):
                step_begins()
                x = torch.randn(64, 512, device=DEVICE)
                close(fast(x).clone(), model(x), 1e-2)
        assert len(torch.cuda.memory._snapshot()["device_traces"][0]) > 20
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    graphs_were_used()


class Decoder(nn.Module):
    """A small decoder whose keys and values stay in memory that is allocated once."""

    def __init__(self, words=512, width=256, heads=4, layers=3, length=64, batch=4):
        super().__init__()
        self.heads, self.length = heads, length
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))
        shape = layers, batch, heads, length, width // heads
        self.register_buffer("keys", torch.zeros(shape))
        self.register_buffer("values", torch.zeros(shape))

    def forward(self, tokens, place):
        batch = tokens.shape[0]
        x = self.words(tokens) + self.places(place)
        seen = torch.arange(self.length, device=x.device) <= place
        for i, qkv in enumerate(self.qkv):
            q, k, v = (part.view(batch, self.heads, 1, -1) for part in
                       qkv(functional.layer_norm(x, x.shape[-1:])).chunk(3, -1))
            self.keys[i].index_copy_(2, place, k)
            self.values[i].index_copy_(2, place, v)
            y = functional.scaled_dot_product_attention(q, self.keys[i], self.values[i],
                                                        attn_mask=seen[None, None, None])
            x = x + self.out[i](y.reshape(batch, -1))
            x = x + self.down[i](functional.gelu(self.up[i](functional.layer_norm(x, x.shape[-1:]))))
        return x @ self.words.weight.t()


@feature(timeout=COMPILES)
def static_cache_decode():
    fresh()
    model = Decoder().to(DEVICE).eval()
    plain = copy.deepcopy(model)
    fast = with_graphs(model)
    tokens, place = torch.arange(4, device=DEVICE), torch.zeros(1, dtype=torch.long, device=DEVICE)
    with torch.no_grad():
        for i in range(40):
            place.fill_(i)
            step_begins()
            one, other = fast(tokens, place).clone(), plain(tokens, place)
            close(one, other, 2e-2)
            tokens = other.argmax(-1)
    assert cudagraph_trees.get_container(torch.cuda.current_device()).tree_manager is not None


@feature(timeout=COMPILES)
def transformers_static_cache():
    """transformers' generate() with a static cache, which it compiles."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        raise Skip("no transformers") from error
    fresh()
    torch.manual_seed(0)
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8,
             "num_key_value_heads": 4, "vocab_size": 1000}
    model = LlamaForCausalLM(LlamaConfig(**sizes)).to(DEVICE, dtype=torch.bfloat16).eval()
    tokens = torch.randint(0, 1000, (2, 32), device=DEVICE)
    words = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    made = model.generate(tokens, cache_implementation="static", **words)
    assert torch.equal(made[:, :32], tokens) and 32 < made.shape[1] <= 40, made.shape


if triton:
    @triton.jit
    def add_kernel(x, y, out, count, BLOCK: tl.constexpr):
        places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = places < count
        tl.store(out + places, tl.load(x + places, mask=mask) + tl.load(y + places, mask=mask), mask=mask)


@feature(timeout=120)
def triton_kernel():
    if triton is None:
        raise Skip("no Triton")
    x, y = torch.randn(100_003, device=DEVICE), torch.randn(100_003, device=DEVICE)
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
    assert torch.equal(out, x + y)
