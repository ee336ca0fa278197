# SPDX-License-Identifier: MIT
"""Two processes, each with a GPU of its own.

The other processes are started by spawn, so they import this module again."""

import os
import tempfile
from datetime import timedelta

import torch
import torch.multiprocessing as multiprocessing
from torch import distributed

from .support import FIRST, SECOND, Skip, feature_of_two, holds

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # NVLink multicast is the host's, not of these processes alone
SPAWN = multiprocessing.get_context("spawn")
SECONDS = 60
CYCLES = 5_000_000  # what torch.cuda._sleep waits: some milliseconds


def end(process):
    process.join(SECONDS)
    if process.exitcode is None:
        process.kill()
    assert process.exitcode == 0, f"the other process ended with {process.exitcode}"


def exchange(questions, answers, go_on):
    torch.cuda.set_device(1)
    tensor = questions.get(timeout=SECONDS)
    answers.put((tensor.device.index, float(tensor.to(SECOND).sum())))
    own = torch.full((1 << 22,), 3.0, device=SECOND)
    torch.cuda.synchronize()
    answers.put(own)
    go_on.wait(SECONDS)  # who sends a tensor must live until it is received
    tensor.add_(1)
    torch.cuda.synchronize(0)
    answers.put("added")


@feature_of_two
def tensors_shared_between_devices():
    """A process on the second device reads and writes a tensor of the first, and shares one of its own."""
    questions, answers, go_on = SPAWN.Queue(), SPAWN.Queue(), SPAWN.Event()
    process = SPAWN.Process(target=exchange, args=(questions, answers, go_on))
    process.start()
    tensor = torch.ones(1 << 22, device=FIRST)
    torch.cuda.synchronize(0)
    questions.put(tensor)
    assert answers.get(timeout=SECONDS) == (0, float(1 << 22))
    theirs = answers.get(timeout=SECONDS)
    assert theirs.device.index == 1 and float(theirs.to(FIRST).sum()) == 3.0 * (1 << 22)
    del theirs
    go_on.set()
    assert answers.get(timeout=SECONDS) == "added"
    assert holds(tensor, 2.0)
    end(process)
    torch.cuda.ipc_collect()


def reduce_all(rank, meeting, answers):
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    distributed.init_process_group("nccl", init_method=f"file://{meeting}", rank=rank, world_size=2, device_id=device,
                                   timeout=timedelta(seconds=SECONDS))
    side, wrong = torch.cuda.Stream(), 0
    for turn in range(20):
        tensor = torch.full((1 << 22,), rank + turn, dtype=torch.int32, device=device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(CYCLES)
            distributed.all_reduce(tensor)
            copied = tensor.clone()
        tensor.record_stream(side)
        del tensor
        other = torch.full((1 << 22,), -1, dtype=torch.int32, device=device)
        work = distributed.all_reduce(other, async_op=True)
        side.synchronize()
        wrong += not holds(copied, 2 * turn + 1)
        work.wait()
        wrong += not holds(other, -2)
    distributed.destroy_process_group()
    answers.put((rank, wrong))


@feature_of_two
def all_reduce():
    """NCCL's sums are right where its stream is the last user of a tensor."""
    if not distributed.is_nccl_available():
        raise Skip("PyTorch was built without NCCL")
    answers = SPAWN.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(reduce_all, args=(os.path.join(folder, "meeting"), answers), nprocs=2)
    found = dict(answers.get() for _ in range(2))
    assert found == {0: 0, 1: 0}, f"wrong of 40, by rank: {found}"
