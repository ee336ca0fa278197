# SPDX-License-Identifier: MIT
"""Memory that several streams and threads use."""

import copy
import threading

import torch

from .support import DEVICE, MIB, block, close, feature, holds, net, settle

CYCLES = 20_000_000  # what torch.cuda._sleep waits: some milliseconds


@feature
def record_stream():
    """Memory that another stream still reads is not given to the next request."""
    side, wrong = torch.cuda.Stream(), 0
    for i in range(20):
        tensor = torch.full((1 << 22,), i, dtype=torch.int32, device=DEVICE)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(CYCLES)
            copied = tensor.clone()
            tensor.record_stream(side)
        del tensor
        other = torch.full((1 << 22,), -1, dtype=torch.int32, device=DEVICE)
        side.synchronize()
        wrong += not holds(copied, i)
        del other
    assert wrong == 0, f"{wrong} of 20 were overwritten"


@feature
def active_until_other_stream_is_done():
    settle()
    side = torch.cuda.Stream()
    tensor = block(64 * MIB, 1)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(CYCLES * 20)
    tensor.record_stream(side)
    before = torch.cuda.memory_stats()
    del tensor
    during = torch.cuda.memory_stats()
    assert before["allocated_bytes.all.current"] - during["allocated_bytes.all.current"] == 64 * MIB
    assert before["active_bytes.all.current"] == during["active_bytes.all.current"]
    torch.cuda.synchronize()
    block(64 * MIB)
    after = torch.cuda.memory_stats()
    assert before["active_bytes.all.current"] - after["active_bytes.all.current"] == 64 * MIB


@feature
def same_stream_reuses_at_once():
    settle()
    base = torch.cuda.memory_reserved()
    for i in range(200):
        torch.cuda._sleep(10000)
        block(128 * MIB, i % 256)
    assert torch.cuda.memory_reserved() - base <= 160 * MIB


@feature
def threads_and_streams():
    """Eight threads, each with a stream of its own, allocate and check patterns."""
    wrong, errors = [], []

    def work(number):
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                bad, live = torch.zeros((), dtype=torch.int64, device=DEVICE), []
                for i in range(300):
                    value = number * 1000 + i
                    size = 1 + (i * 7919 * (number + 1)) % (1 << 20)
                    live.append((torch.full((size,), value, dtype=torch.int32, device=DEVICE), value))
                    if len(live) > 12:
                        tensor, was = live.pop((i * 31) % len(live))
                        bad += (tensor != was).sum()
                for tensor, was in live:
                    bad += (tensor != was).sum()
                wrong.append(int(bad))
        except Exception as error:  # pylint: disable=broad-exception-caught
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    assert wrong == [0] * 8, wrong


@feature
def freed_by_another_thread():
    tensors = [torch.full((1 << 20,), i, dtype=torch.int32, device=DEVICE) for i in range(64)]
    before = torch.cuda.memory_allocated()
    right = []

    def drop():
        while tensors:
            number = len(tensors) - 1
            right.append(holds(tensors.pop(), number))

    thread = threading.Thread(target=drop)
    thread.start()
    thread.join()
    assert right == [True] * 64
    assert before - torch.cuda.memory_allocated() == 64 * 4 * MIB


@feature
def autograd_over_streams():
    """Parts of a model on two streams; backward uses the same streams in threads of autograd."""
    first, second = net(), net()
    plain = copy.deepcopy(first), copy.deepcopy(second)
    side = torch.cuda.Stream()
    for i in range(10):
        x = torch.randn(256 + 64 * i, 512, device=DEVICE)
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            torch.cuda._sleep(100_000)
            middle = first(x)
            x.record_stream(side)
        main.wait_stream(side)
        middle.record_stream(main)
        second(middle).square().mean().backward()
        plain[1](plain[0](x)).square().mean().backward()
        del x, middle
    torch.cuda.synchronize()
    for one, other in zip([*first.parameters(), *second.parameters()],
                          [*plain[0].parameters(), *plain[1].parameters()]):
        close(one.grad, other.grad)


@feature
def handed_between_streams():
    """A chain of streams, each reading what the stream before made."""
    streams = [torch.cuda.Stream() for _ in range(6)]
    tensor, event = torch.zeros(1 << 20, device=DEVICE), torch.cuda.Event()
    event.record()
    for i in range(120):
        stream = streams[i % 6]
        with torch.cuda.stream(stream):
            stream.wait_event(event)
            tensor.record_stream(stream)
            torch.cuda._sleep(200_000)
            tensor = tensor + 1
            event = torch.cuda.Event()
            event.record()
    torch.cuda.synchronize()
    assert holds(tensor, 120)


@feature
def external_stream():
    stream = torch.cuda.Stream()
    outside = torch.cuda.ExternalStream(stream.cuda_stream)
    with torch.cuda.stream(outside):
        tensor = torch.full((1 << 20,), 5.0, device=DEVICE)
        total = tensor.sum()
    outside.synchronize()
    assert float(total) == 5 << 20


@feature
def stream_gone_before_its_memory():
    """The tensor outlives the Python object of the stream that it was made on."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        tensor = block(8 * MIB, 9)
    stream.synchronize()
    del stream
    settle()
    assert holds(tensor, 9)
    del tensor
    settle()
