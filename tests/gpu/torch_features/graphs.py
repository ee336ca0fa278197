# SPDX-License-Identifier: MIT
"""CUDA graphs that PyTorch captures, and their private memory."""

import copy

import torch

from .support import DEVICE, GIB, MIB, block, close, feature, holds, net, program, settle


def warm(function):
    """As PyTorch's documents say: on another stream, before capture."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(side)


def captured(function, pool=None):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = function()
    return graph, result


def churn():
    """Other allocations come, are written to, and go; returns some that stay."""
    kept = []
    for i in range(1, 60):
        tensor = block((i * 37 % 64 + 1) * MIB, i)
        if i % 6 == 0:
            kept.append((tensor, i))
    return kept


@feature
def graph_capture():
    model, x = net(), torch.randn(64, 512, device=DEVICE)
    with torch.no_grad():
        warm(lambda: model(x))
        graph, y = captured(lambda: model(x))
        for _ in range(5):
            x.copy_(torch.randn(64, 512, device=DEVICE))
            graph.replay()
            close(y, model(x))


@feature
def two_graphs_one_pool():
    model, x = net(), torch.randn(64, 512, device=DEVICE)
    warm(lambda: model(x))
    first, y1 = captured(lambda: model(x))
    second, y2 = captured(lambda: model(x) * 2, pool=first.pool())
    first.replay()
    second.replay()
    close(y1 * 2, y2)


@feature
def graph_pool_handle():
    """Three graphs share a handle; the others work on after one is deleted."""
    x, pool = torch.randn(1 << 20, device=DEVICE), torch.cuda.graph_pool_handle()
    warm(lambda: (x * 2).cumsum(0))
    made = [captured(lambda n=n: (x * n).cumsum(0), pool=pool) for n in (1, 2, 3)]
    made[0] = None
    kept = churn()
    for n, (graph, y) in zip((2, 3), made[1:]):
        x.normal_()
        graph.replay()
        close(y, (x * n).cumsum(0))
    assert all(holds(tensor, value) for tensor, value in kept)


@feature
def graphed_callables():
    model = net()
    plain = copy.deepcopy(model)
    x = torch.randn(64, 512, device=DEVICE, requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(model, (x,))
    for _ in range(4):
        # A gradient that autograd has not added up yet is the graph's own memory, which the next replay writes.
        for module in (model, plain):
            module.zero_grad(set_to_none=True)
        one = torch.randn(64, 512, device=DEVICE, requires_grad=True)
        other = one.detach().clone().requires_grad_()
        graphed(one).square().mean().backward()
        plain(other).square().mean().backward()
        close(one.grad, other.grad)
        for p, q in zip(model.parameters(), plain.parameters()):
            close(p.grad, q.grad)


@feature
def training_step_in_a_graph():
    """Forward, backward and the optimizer in one graph, against the same steps without."""
    model = net()
    plain = copy.deepcopy(model)
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-3, capturable=True) for m in (model, plain)]
    x, wanted = torch.randn(256, 512, device=DEVICE), torch.randn(256, 512, device=DEVICE)

    def step(which, optimizer):
        optimizer.zero_grad(set_to_none=True)
        loss = (which(x) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    warm(lambda: step(model, optimizers[0]))
    for _ in range(3):
        step(plain, optimizers[1])
    optimizers[0].zero_grad(set_to_none=True)
    graph, loss = captured(lambda: step(model, optimizers[0]))
    for _ in range(10):
        x.normal_()
        graph.replay()
        expected = step(plain, optimizers[1])
        close(loss.detach(), expected.detach(), 1e-2)
    for p, q in zip(model.parameters(), plain.parameters()):
        close(p, q, 1e-2)


@feature
def capture_over_streams():
    """Work forks to other streams within a capture and joins again; their memory is used by several streams."""
    streams = [torch.cuda.Stream() for _ in range(3)]
    x = torch.randn(1 << 18, device=DEVICE)

    def work():
        main = torch.cuda.current_stream()
        base, parts = x * 2, []
        for i, stream in enumerate(streams):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                base.record_stream(stream)
                temporary = base + i
                parts.append((temporary * temporary).cumsum(0) * 1e-6)
                del temporary
        del base
        for stream in streams:
            main.wait_stream(stream)
        for part in parts:
            part.record_stream(main)
        overwritten = [torch.full_like(x, -1) for _ in range(4)]
        total = sum(parts)
        del parts, overwritten
        return total

    warm(work)
    graph, y = captured(work)
    for _ in range(5):
        x.normal_()
        kept = churn()
        graph.replay()
        expected = sum(((x * 2 + i) ** 2).cumsum(0) * 1e-6 for i in range(3))
        close(y, expected, 1e-2)
        assert all(holds(tensor, value) for tensor, value in kept)


@feature
def replay_after_others():
    """Replays give the same after other memory came and went, and after empty_cache; they harm no one else's."""
    model, x = net(1024), torch.randn(512, 1024, device=DEVICE)
    with torch.no_grad():
        warm(lambda: model(x))
        graph, y = captured(lambda: model(model(x)))
        expected = model(model(x))
        for turn in range(6):
            kept = churn()
            if turn % 2:
                torch.cuda.empty_cache()
            graph.replay()
            close(y, expected)
            assert all(holds(tensor, value) for tensor, value in kept), f"turn {turn}: others' memory changed"
            del kept


@feature
def replay_allocates_nothing():
    x = torch.randn(1 << 22, device=DEVICE)
    graph, y = captured(lambda: (x * 2 + 1).relu())
    before = torch.cuda.memory_stats()
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()
    after = torch.cuda.memory_stats()
    assert before == after, [key for key in before if before[key] != after[key]]
    close(y, (x * 2 + 1).relu())


@feature
def graph_memory_comes_back():
    settle()
    before, free = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]
    x = torch.ones(1 << 28, device=DEVICE)
    graph, y = captured(lambda: (x + 1) * 2)
    graph.replay()
    assert holds(y, 4)
    held = torch.cuda.memory_reserved()
    assert held - before >= 2 * GIB
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before >= 2 * GIB  # the graph still needs it
    graph.replay()
    assert holds(y, 4)
    del graph, y, x
    settle()
    left, used = torch.cuda.memory_reserved() - before, free - torch.cuda.mem_get_info()[0]
    assert left <= 64 * MIB and used <= 256 * MIB, f"{left >> 20} MiB reserved, {used >> 20} MiB used are left"


@feature
def graph_result_outlives_graph():
    x = torch.randn(1 << 20, device=DEVICE)
    graph, y = captured(lambda: x * 3)
    graph.replay()
    del graph
    settle()
    kept = churn()
    close(y, x * 3)
    assert all(holds(tensor, value) for tensor, value in kept)


@feature
def graph_temporaries_are_reused():
    """Within a graph, temporary memory is used again."""
    x = torch.randn(16 * MIB, device=DEVICE)

    def chain():
        y = x
        for _ in range(20):
            y = y * 1.01
        return y

    settle()
    before = torch.cuda.memory_reserved()
    graph, y = captured(chain)
    grew = torch.cuda.memory_reserved() - before
    assert grew <= 4 * 64 * MIB, f"{grew >> 20} MiB for temporaries of 64 MiB"
    graph.replay()
    close(y, x * 1.01 ** 20)


BROKEN_CAPTURE = """
import torch
x = torch.randn(1 << 20, device='cuda')
graph = torch.cuda.CUDAGraph()
try:
    with torch.cuda.graph(graph):
        y = x * 2
        y.sum().item()
except RuntimeError as error:
    print('raised', 'captur' in str(error))
z = torch.full((1 << 24,), 3, dtype=torch.uint8, device='cuda')
print(int(z.min()), int(z.max()))
"""


@feature
def capture_that_fails():
    """After a capture that broke off, the process allocates on."""
    done = program(BROKEN_CAPTURE)
    assert done.stdout.split() == ["raised", "True", "3", "3"], done.stdout + done.stderr[-300:]


@feature
def memory_in_snapshot_of_graph():
    x = torch.randn(1 << 22, device=DEVICE)
    graph, y = captured(lambda: x * 2)
    owners = [s for s in torch.cuda.memory_snapshot()
              if s["address"] <= y.data_ptr() < s["address"] + s["total_size"]]
    assert len(owners) == 1 and tuple(owners[0]["segment_pool_id"]) == tuple(graph.pool()), owners
    others = [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == (0, 0)]
    assert any(s["address"] <= x.data_ptr() < s["address"] + s["total_size"] for s in others)


@feature
def snapshot_tells_streams_of_graph():
    """A pool that two streams use: each block lies in a segment of its stream."""
    main, side = torch.cuda.Stream(), torch.cuda.Stream()
    x = torch.ones(1 << 22, device=DEVICE)
    torch.cuda.synchronize()
    graph, held = torch.cuda.CUDAGraph(), {}
    with torch.cuda.graph(graph, stream=main):
        held[main] = x + 1
        side.wait_stream(main)
        with torch.cuda.stream(side):
            held[side] = held[main] + 1
        main.wait_stream(side)
    segments = [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == tuple(graph.pool())]
    for stream, tensor in held.items():
        owners = [s for s in segments if s["address"] <= tensor.data_ptr() < s["address"] + s["total_size"]]
        assert [s["stream"] for s in owners] == [stream.cuda_stream], (stream, segments)


@feature
def graph_for_each_batch():
    """As servers do: a graph for each batch size, the largest first, all in one pool."""
    model, pool, graphs = net(), torch.cuda.graph_pool_handle(), {}
    x = torch.randn(64, 512, device=DEVICE)
    with torch.no_grad():
        warm(lambda: model(x))
        sizes = []
        settle()
        for batch in (64, 32, 16, 8, 4, 2, 1):
            graphs[batch] = captured(lambda b=batch: model(x[:b]), pool=pool)
            sizes.append(torch.cuda.memory_reserved())
        for batch in (1, 64, 8, 2, 32, 16, 4):
            x.normal_()
            graph, y = graphs[batch]
            graph.replay()
            close(y, model(x[:batch]))
    assert sizes[-1] - sizes[0] <= 64 * MIB, sizes
