# SPDX-License-Identifier: MIT
"""Two GPUs of one process: tensors on both, copies between them, and what is of one of them alone."""

import threading

import torch
from torch import nn

from .support import BOTH, FIRST, GIB, MIB, SECOND, close, feature_of_two, holds, out_of_memory, settle

CYCLES = 20_000_000  # what torch.cuda._sleep waits: some milliseconds


def filled(size, value, device):
    """A tensor of so many bytes, each with this value."""
    return torch.full((size,), value, dtype=torch.uint8, device=device)


def allocated():
    return [torch.cuda.memory_allocated(device) for device in BOTH]


def wait():
    for device in BOTH:
        torch.cuda.synchronize(device)


@feature_of_two
def tensors_on_both():
    before = allocated()
    for size in (1000, 70_000, 3 * MIB, 256 * MIB):
        tensors = [filled(size, n + 1, device) for n, device in enumerate(BOTH)]
        for n, tensor in enumerate(tensors):
            assert tensor.device.index == n
            assert holds(tensor, n + 1)
        del tensors, tensor
    assert allocated() == before, (before, allocated())


@feature_of_two
def current_device():
    """A tensor without a number goes to the current device, which each thread has for itself."""

    def made():
        return torch.empty(MIB, dtype=torch.uint8, device="cuda").device.index

    seen = [made()]
    with torch.cuda.device(1):
        seen.append(made())
        with torch.cuda.device(0):
            seen.append(made())
        thread = threading.Thread(target=lambda: seen.append(made()))
        thread.start()
        thread.join()
        seen.append(made())
    seen.append(made())
    assert seen == [0, 1, 0, 0, 1, 0], seen


@feature_of_two
def free_with_other_current():
    """A tensor is freed while the other device is the current one."""
    before, reserved = allocated(), None
    for turn in range(20):
        tensors = [filled(40 * MIB, turn, device) for device in BOTH]
        with torch.cuda.device(1 - turn % 2):
            del tensors
        if turn == 3:
            reserved = [torch.cuda.memory_reserved(device) for device in BOTH]
    assert allocated() == before
    assert [torch.cuda.memory_reserved(device) for device in BOTH] == reserved


@feature_of_two
def record_stream_of_other_device():
    """Memory stays out of use until a stream of the other device is done."""
    for own, other in ((0, 1), (1, 0)):
        stream = torch.cuda.Stream(device=other)
        tensor = torch.empty(64 * MIB, dtype=torch.uint8, device=f"cuda:{own}")
        with torch.cuda.stream(stream):
            torch.cuda._sleep(CYCLES * 20)
        tensor.record_stream(stream)
        before = torch.cuda.memory_stats(own)
        del tensor
        during = torch.cuda.memory_stats(own)
        busy = not stream.query()
        assert before["allocated_bytes.all.current"] - during["allocated_bytes.all.current"] == 64 * MIB
        if busy:
            assert before["active_bytes.all.current"] == during["active_bytes.all.current"]
        wait()
        torch.empty(64 * MIB, dtype=torch.uint8, device=f"cuda:{own}")
        after = torch.cuda.memory_stats(own)
        assert before["active_bytes.all.current"] - after["active_bytes.all.current"] == 64 * MIB


@feature_of_two
def copies():
    """Each is right although its source is freed at once and its memory is used again."""
    wrong = 0
    for turn in range(40):
        source, target = BOTH if turn % 2 else BOTH[::-1]
        tensor = filled((turn % 5 * 16 + 1) * MIB, turn, source)
        copied = tensor.to(target, non_blocking=True)
        size = tensor.numel()
        del tensor
        other = filled(size, 255, source)
        wrong += not holds(copied, turn)
        del other
    assert wrong == 0, f"{wrong} of 40"
    return f"peer access: {torch.cuda.can_device_access_peer(0, 1)}"


@feature_of_two
def copies_by_kernels():
    """Kernels read or write the other device's memory where tensors have gaps or other types."""
    for source, target in (BOTH, BOTH[::-1]):
        tensor = torch.arange(1 << 22, dtype=torch.float32, device=source).view(2048, 2048)
        gaps = torch.zeros(2048, 4096, device=target)
        gaps[:, ::2].copy_(tensor)
        assert bool((gaps[:, ::2].cpu() == tensor.cpu()).all()) and float(gaps[:, 1::2].sum()) == 0
        wider = torch.empty(2048, 2048, dtype=torch.float64, device=target)
        wider.copy_(tensor.t())
        assert bool((wider.cpu() == tensor.t().cpu()).all())


@feature_of_two
def copies_on_side_streams():
    """By a stream of each device, each with memory of its own."""
    sides = [torch.cuda.Stream(device=device) for device in BOTH]
    wrong = 0
    for turn in range(20):
        with torch.cuda.stream(sides[0]), torch.cuda.stream(sides[1]):
            with torch.cuda.device(0):
                tensor = torch.full((1 << 22,), turn, dtype=torch.int32, device=FIRST)
                torch.cuda._sleep(CYCLES // 4)
            copied = tensor.to(SECOND, non_blocking=True)
            back = (copied + 1).to(FIRST, non_blocking=True)
            del tensor, copied
        wait()
        wrong += not holds(back, turn + 1)
    assert wrong == 0, f"{wrong} of 20"


@feature_of_two
def data_parallel():
    """One process trains on both: the model is copied, the batch split, by NCCL where PyTorch has it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).to(FIRST)
    x = torch.randn(256, 512, device=FIRST)
    expected = model(x)
    for _ in range(5):
        model.zero_grad()
        y = nn.DataParallel(model, device_ids=[0, 1])(x)
        y.square().mean().backward()
    close(y, expected)
    found = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model(x).square().mean().backward()
    for one, parameter in zip(found, model.parameters()):
        close(one, parameter.grad)


@feature_of_two
def threads_on_both():
    """Two threads on each device allocate and check patterns at once."""
    wrong, errors = [], []

    def work(number):
        try:
            device = BOTH[number % 2]
            torch.cuda.set_device(device)
            with torch.cuda.stream(torch.cuda.Stream(device=device)):
                bad, live = 0, []
                for i in range(200):
                    value = (number * 50 + i) % 251
                    live.append((filled(1 + (i * 7919 * (number + 1)) % (8 * MIB), value, device), value))
                    if len(live) > 12:
                        tensor, was = live.pop((i * 31) % len(live))
                        bad += not holds(tensor, was)
                wrong.append(bad)
        except Exception as error:  # pylint: disable=broad-exception-caught
            errors.append(repr(error))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and wrong == [0] * 4, (errors[:1], wrong)


@feature_of_two
def oom_of_one():
    """The second device is full; the first goes on, and has its memory."""
    kept, oom = filled(64 * MIB, 7, FIRST), [torch.cuda.memory_stats(device)["num_ooms"] for device in BOTH]
    with torch.cuda.device(1):
        full = [torch.empty(int(torch.cuda.mem_get_info()[0] * 0.85), dtype=torch.uint8, device=SECOND)]
        message = out_of_memory(torch.cuda.mem_get_info()[0] + 2 * GIB)
    assert "GPU 1 has a total capacity" in message, message
    now = [torch.cuda.memory_stats(device)["num_ooms"] for device in BOTH]
    assert now == [oom[0], oom[1] + 1], (oom, now)
    large = torch.empty(int(torch.cuda.mem_get_info(0)[0] * 0.8), dtype=torch.uint8, device=FIRST)
    large[-1] = 3
    assert int(large[-1]) == 3 and holds(kept, 7)
    del full, large
    settle()
    again = torch.empty(int(torch.cuda.mem_get_info(1)[0] * 0.8), dtype=torch.uint8, device=SECOND)
    del again
    settle()


@feature_of_two
def stats_of_each():
    for device in BOTH:
        torch.cuda.reset_peak_memory_stats(device)
    before = [torch.cuda.memory_stats(device) for device in BOTH]
    tensor = torch.empty(192 * MIB, dtype=torch.uint8, device=SECOND)
    after = [torch.cuda.memory_stats(device) for device in BOTH]
    for key, size in (("allocated_bytes", 192 * MIB), ("requested_bytes", 192 * MIB), ("allocation", 1)):
        grew = [now[f"{key}.all.current"] - was[f"{key}.all.current"] for now, was in zip(after, before)]
        assert grew == [0, size], f"{key} grew by {grew}"
    assert after[0]["reserved_bytes.all.current"] == before[0]["reserved_bytes.all.current"]
    assert torch.cuda.memory_reserved(1) >= torch.cuda.memory_allocated(1) >= 192 * MIB
    pointer, segments = tensor.data_ptr(), torch.cuda.memory_snapshot()
    owner = [s["device"] for s in segments if s["address"] <= pointer < s["address"] + s["total_size"]]
    assert owner == [1], owner
    del tensor
    torch.cuda.reset_peak_memory_stats(0)
    peaks = [torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device) for device in BOTH]
    assert peaks == [0, 192 * MIB], peaks
    for n, device in enumerate(BOTH):
        assert f"device ID {n}" in torch.cuda.memory_summary(device)


@feature_of_two
def history_of_each():
    torch.cuda.memory._record_memory_history(stacks="python")
    try:
        tensors = [torch.empty((n + 1) * 32 * MIB, dtype=torch.uint8, device=device) for n, device in enumerate(BOTH)]
        traces = torch.cuda.memory._snapshot()["device_traces"]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    del tensors
    sizes = [[entry["size"] for entry in trace if entry["action"] == "alloc"] for trace in traces[:2]]
    assert sizes == [[32 * MIB], [64 * MIB]], sizes


@feature_of_two
def empty_cache_of_both():
    tensors = [torch.empty(4 * GIB, dtype=torch.uint8, device=device) for device in BOTH]
    wait()
    during = [torch.cuda.mem_get_info(device)[0] for device in BOTH]
    del tensors
    settle()
    gained = [torch.cuda.mem_get_info(device)[0] - free for device, free in zip(BOTH, during)]
    assert min(gained) >= 4 * GIB - 64 * MIB, [n >> 20 for n in gained]


@feature_of_two
def fraction_of_one():
    total = torch.cuda.mem_get_info(1)[1]
    torch.cuda.set_per_process_memory_fraction(0.1, 1)
    try:
        assert abs(torch.cuda.get_per_process_memory_fraction(1) - 0.1) < 1e-6
        assert torch.cuda.get_per_process_memory_fraction(0) == 1.0
        with torch.cuda.device(1):
            message = out_of_memory(total // 5)
        assert "GPU 1" in message, message
        first = torch.empty(total // 5, dtype=torch.uint8, device=FIRST)
        second = torch.empty(total // 20, dtype=torch.uint8, device=SECOND)
        del first, second
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, 1)
    again = torch.empty(total // 5, dtype=torch.uint8, device=SECOND)
    del again
    settle()


@feature_of_two
def graph_on_second():
    """A graph of each device is replayed while tensors come and go on both."""
    graphs = []
    for n, device in enumerate(BOTH):
        with torch.cuda.device(device):
            x = torch.ones(1 << 20, device=device)
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    (x * 2 + 1).relu()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            before = [torch.cuda.memory_stats(other)["allocation.all.allocated"] for other in BOTH]
            with torch.cuda.graph(graph, stream=side):  # its own default is a stream of the first device
                y = (x * 2 + 1).relu()
            after = [torch.cuda.memory_stats(other)["allocation.all.allocated"] for other in BOTH]
            assert after[n] > before[n] and after[1 - n] == before[1 - n], (before, after)
            graphs.append((graph, x, y))
    for turn in range(5):
        others = [filled((turn * 7 + 1) * MIB, 255, device) for device in BOTH]
        for (graph, x, y), device in zip(graphs, BOTH):
            with torch.cuda.device(device):
                x.fill_(turn)
                graph.replay()
                assert holds(y, 2 * turn + 1), f"{device}: {float(y[0])}"
        del others


@feature_of_two
def pool_on_second():
    with torch.cuda.device(1):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            inside = filled(8 * MIB, 1, SECOND)
    outside = filled(8 * MIB, 2, SECOND)
    segments = pool.snapshot()
    assert {segment["device"] for segment in segments} == {1}, segments
    assert any(s["address"] <= inside.data_ptr() < s["address"] + s["total_size"] for s in segments)
    assert holds(inside, 1) and holds(outside, 2)
    del inside, pool
