# SPDX-License-Identifier: MIT
"""Tensors on the GPU that several processes share.

The other processes are started by spawn, so they import this module again."""

import os

import torch
import torch.multiprocessing as multiprocessing
from torch.utils.data import DataLoader, Dataset

from .support import DEVICE, MIB, block, feature, holds, settle

SPAWN = multiprocessing.get_context("spawn")
SECONDS = 60


def start(target, *arguments):
    process = SPAWN.Process(target=target, args=arguments)
    process.start()
    return process


def end(process):
    process.join(SECONDS)
    assert process.exitcode == 0, f"the other process ended with {process.exitcode}"


def sum_of(answers, tensor):
    answers.put(float(tensor.sum()))


@feature
def tensor_to_another():
    answers, tensor = SPAWN.Queue(), torch.ones(1 << 20, device=DEVICE)
    process = start(sum_of, answers, tensor)
    assert answers.get(timeout=SECONDS) == 1 << 20
    end(process)


def add_and_return(questions, answers, go_on):
    for _ in range(3):
        tensor = questions.get(timeout=SECONDS)
        tensor += 1
        torch.cuda.synchronize()
        answers.put(tensor * 2)
        del tensor
    go_on.wait(SECONDS)  # who sends a tensor must live until it is received


@feature(timeout=90)
def tensors_both_ways():
    """The other process writes into our tensor, and sends one that it made."""
    questions, answers, go_on = SPAWN.Queue(), SPAWN.Queue(), SPAWN.Event()
    process = start(add_and_return, questions, answers, go_on)
    tensor = torch.full((1 << 20,), 5.0, device=DEVICE)
    for turn in range(3):
        torch.cuda.synchronize()
        questions.put(tensor)
        answer = answers.get(timeout=SECONDS)
        assert holds(tensor, 6.0 + turn) and holds(answer, 2 * (6.0 + turn))
        del answer
    go_on.set()
    end(process)


def hold(questions, answers, look):
    tensors = questions.get(timeout=SECONDS)
    answers.put("held")
    look.wait(SECONDS)
    answers.put([bool((tensor == i).all()) for i, tensor in enumerate(tensors)])


@feature(timeout=90)
def receiver_outlives_del():
    """Memory that another process has is not given out again when its maker drops it."""
    questions, answers, look = SPAWN.Queue(), SPAWN.Queue(), SPAWN.Event()
    process = start(hold, questions, answers, look)
    tensors = [block(size, i) for i, size in enumerate((1000, 70_000, 3 * MIB, 40 * MIB, 1000))]
    torch.cuda.synchronize()
    questions.put(tensors)
    assert answers.get(timeout=SECONDS) == "held"
    del tensors
    settle()
    others = [block(size, 99) for size in (1000, 70_000, 3 * MIB, 40 * MIB) for _ in range(20)]
    torch.cuda.synchronize()
    look.set()
    assert answers.get(timeout=SECONDS) == [True] * 5
    end(process)
    del others
    torch.cuda.ipc_collect()


def train(model, answers, go_on):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.ones(8, 64, device=DEVICE)).sum().backward()
        optimizer.step()
    torch.cuda.synchronize()
    answers.put("trained")
    go_on.wait(SECONDS)


@feature(timeout=90)
def shared_parameters():
    """Another process trains a model whose parameters are ours."""
    model = torch.nn.Linear(64, 4).to(DEVICE)
    before = model.weight.detach().clone()
    answers, go_on = SPAWN.Queue(), SPAWN.Event()
    process = start(train, model, answers, go_on)
    assert answers.get(timeout=SECONDS) == "trained"
    torch.testing.assert_close(model.weight.detach(), before - 5 * 0.1 * 8, rtol=1e-4, atol=1e-4)
    go_on.set()
    end(process)


class OnDevice(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.full((1000,), float(index), device=DEVICE)


@feature(timeout=120)
def dataloader_of_gpu_tensors():
    """Spawned workers of a DataLoader make tensors on the GPU."""
    loader = DataLoader(OnDevice(), batch_size=4, num_workers=2, multiprocessing_context="spawn")
    total = 0.0
    for batch in loader:
        assert batch.is_cuda and batch.shape == (4, 1000)
        total += float(batch.sum())
    assert total == 1000 * sum(range(32))


def rank(number, answers):
    tensor = torch.full((1 << 20,), float(number + 1), device=DEVICE)
    for _ in range(20):
        tensor = tensor + 1
    answers.put((number, float(tensor.mean())))


@feature(timeout=120)
def spawn_several():
    """As torch.multiprocessing.spawn starts a process for each rank; all use one GPU."""
    answers = SPAWN.SimpleQueue()
    multiprocessing.spawn(rank, args=(answers,), nprocs=3)
    assert dict(answers.get() for _ in range(3)) == {n: n + 21.0 for n in range(3)}


@feature
def fork_without_cuda():
    """A child that forks off and leaves CUDA alone ends well, and its parent goes on."""
    tensor = block(16 * MIB, 3)
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.ones(4).sum() == 4 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert holds(tensor, 3) and holds(block(16 * MIB, 4), 4)


@feature
def fork_with_cuda_is_refused():
    """PyTorch tells a child that forked off that it cannot use CUDA."""
    block(MIB)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            torch.ones(4, device=DEVICE)
            said = "nothing"
        except RuntimeError as error:
            said = str(error)
        os.write(write, said.encode()[:1000])
        os._exit(0)
    os.close(write)
    said = b""
    while part := os.read(read, 1000):
        said += part
    os.close(read)
    os.waitpid(child, 0)
    assert b"Cannot re-initialize CUDA in forked subprocess" in said, said
