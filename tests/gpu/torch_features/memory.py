# SPDX-License-Identifier: MIT
"""Tensors, transfers and other libraries that use PyTorch's memory."""

import torch
import torch.nn.functional as functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from .support import DEVICE, MIB, Skip, block, close, feature, holds, net, since


@feature
def tensors():
    product = torch.ones(1000, 1000, device=DEVICE) @ torch.ones(1000, 1000, device=DEVICE)
    assert float(product.sum()) == 1e9


@feature
def allocator_backend():
    name = torch.cuda.get_allocator_backend()
    assert name == "native", f"libraries compare this name with native; it is {name}"


@feature
def patterns():
    """Blocks of many sizes, freed in another order, keep their contents."""
    live, wrong = {}, torch.zeros((), dtype=torch.int64, device=DEVICE)
    sizes = torch.randint(1, 1 << 22, (600,), generator=torch.Generator().manual_seed(1)).tolist()
    for i, size in enumerate(sizes):
        live[i] = torch.full((size,), i, dtype=torch.int16, device=DEVICE)
        if i >= 40:
            gone = (i * 7919) % (i + 1)
            if gone in live:
                wrong += (live.pop(gone) != gone).sum()
    for i, tensor in live.items():
        wrong += (tensor != i).sum()
    assert int(wrong) == 0


@feature
def addresses_aligned():
    live = [block(size) for size in (1, 3, 511, 513, 4097, MIB + 1, 33 * MIB + 5)]
    assert all(tensor.data_ptr() % 512 == 0 for tensor in live)
    spans = sorted((t.data_ptr(), t.data_ptr() + t.numel()) for t in live)
    assert all(before[1] <= after[0] for before, after in zip(spans, spans[1:]))


@feature
def empty_tensors():
    assert torch.empty(0, device=DEVICE).numel() == 0
    assert torch.cat([torch.empty(0, device=DEVICE), torch.ones(3, device=DEVICE)]).sum() == 3


@feature
def resize_storage():
    """As FSDP does: the storage of a parameter is freed and made again."""
    tensor = block(64 * MIB, 1)
    before = torch.cuda.memory_allocated()
    tensor.untyped_storage().resize_(0)
    assert torch.cuda.memory_allocated() == before - 64 * MIB
    tensor.untyped_storage().resize_(64 * MIB)
    tensor.fill_(7)
    assert torch.cuda.memory_allocated() == before and holds(tensor, 7)


@feature
@since(2, 7)
def pinned_memory():
    source = torch.arange(1 << 20, dtype=torch.int32).pin_memory()
    assert source.is_pinned()
    there = source.to(DEVICE, non_blocking=True)
    back = torch.empty(1 << 20, dtype=torch.int32, pin_memory=True)
    back.copy_(there, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(source, back)
    assert torch.cuda.memory.host_memory_stats()["allocated_bytes.current"] >= 8 * MIB


@feature
def dataloader_fork():
    rows = torch.arange(256.0).repeat(8, 1).t().contiguous()
    loader = DataLoader(TensorDataset(rows), batch_size=64, num_workers=2, pin_memory=True)
    total = sum(float(x.to(DEVICE, non_blocking=True).sum()) for (x,) in loader)
    assert total == float(rows.sum())


@feature
def raw_caching_alloc():
    before = torch.cuda.memory_allocated()
    pointer = torch.cuda.caching_allocator_alloc(MIB)
    assert pointer and torch.cuda.memory_allocated() == before + MIB
    torch.cuda.caching_allocator_delete(pointer)
    assert torch.cuda.memory_allocated() == before


@feature
def caching_off_and_on():
    torch.cuda.memory.caching_allocator_enable(False)
    try:
        tensor = block(8 * MIB, 3)
        assert holds(tensor, 3)
        del tensor
    finally:
        torch.cuda.memory.caching_allocator_enable(True)
    assert holds(block(8 * MIB, 4), 4)


@feature
def dlpack_cupy():
    try:
        import cupy
    except ImportError as error:
        raise Skip("no CuPy") from error
    tensor = torch.ones(1000, device=DEVICE)
    array = cupy.from_dlpack(tensor)
    array += 1
    cupy.cuda.get_current_stream().synchronize()
    assert float(tensor.sum()) == 2000
    assert float(torch.from_dlpack(cupy.full(1000, 3.0, dtype="float32")).sum()) == 3000


@feature
def profiler_memory():
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        torch.ones(1 << 22, device=DEVICE).mul(2)
        torch.cuda.synchronize()
    found = sum(abs(event.device_memory_usage) for event in profile.events())
    assert found >= 32 * MIB, f"{found} bytes"


@feature
def attention():
    q, k, v = (torch.randn(4, 8, 1024, 64, device=DEVICE, dtype=torch.bfloat16) for _ in range(3))
    fast = functional.scaled_dot_product_attention(q, k, v)
    weights = torch.softmax(q.float() @ k.float().transpose(-1, -2) / 8, dim=-1)
    close(fast.float(), weights @ v.float(), 2e-2)


@feature
def activation_checkpointing():
    layers = torch.nn.ModuleList(net() for _ in range(6))
    x = torch.randn(4096, 512, device=DEVICE, requires_grad=True)

    def gradients(run):
        layers.zero_grad()
        torch.cuda.reset_peak_memory_stats()
        start, y = torch.cuda.memory_allocated(), x
        for layer in layers:
            y = run(layer, y)
        y.square().mean().backward()
        return [p.grad.clone() for p in layers.parameters()], torch.cuda.max_memory_allocated() - start

    gradients(lambda layer, y: layer(y))
    plain, plain_peak = gradients(lambda layer, y: layer(y))
    saved, saved_peak = gradients(lambda layer, y: checkpoint(layer, y, use_reentrant=False))
    for one, other in zip(plain, saved):
        close(one, other)
    assert saved_peak < plain_peak, f"{saved_peak >> 20} MiB, without checkpoints {plain_peak >> 20} MiB"
    return f"{saved_peak >> 20} of {plain_peak >> 20} MiB"


@feature
def saved_on_cpu():
    x = torch.randn(1024, 512, device=DEVICE, requires_grad=True)
    layer = net()
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        y = layer(x).square().sum()
    y.backward()
    got, x.grad = x.grad, None
    layer(x).square().sum().backward()
    close(got, x.grad)
