# SPDX-License-Identifier: MIT
"""A program of PyTorch that does what it is told on its standard input, a line each, and says the line when that is
done.  Between two lines it calls nothing.

    g GIB       holds a tensor of that size more
    look        looks at the contents of all
    r           frees the last
    train PEAK ITERATIONS   iterations that hold a quarter of PEAK GiB all the time, and PEAK GiB for a moment
    host        from now on a thread writes page-locked host memory, and a copy, all the time; look compares them
"""

import sys
import threading
import time

import torch

held, pinned, plain, lock = [], None, None, threading.Lock()
writer, is_over = None, threading.Event()
GIB = 1 << 30


def hold(gib):
    n = len(held) + 1
    held.append(torch.full((int(float(gib) * GIB) // 4,), n, dtype=torch.int32, device="cuda"))
    torch.cuda.synchronize()


def look():
    for i, tensor in enumerate(held):
        for part in tensor.split(1 << 28):
            assert int(part.min()) == int(part.max()) == i + 1, "contents"
    if pinned is not None:
        with lock:
            assert torch.equal(pinned, plain), "page-locked memory"
        on_device = pinned.cuda()
        torch.cuda.synchronize()
        del on_device


def write_host():
    at = 0
    while not is_over.is_set():
        with lock:
            pinned[at % len(pinned)] = plain[at % len(pinned)] = at % 251
        at += 1
        if at % 1000 == 0:
            time.sleep(.001)


def train(peak, iterations):
    n = int(float(peak) * GIB)
    model = torch.full((n // 4,), 7, dtype=torch.uint8, device="cuda")
    for _ in range(int(iterations)):
        layers = [torch.full((n // 8,), i, dtype=torch.uint8, device="cuda") for i in range(6)]
        for i, layer in enumerate(layers):
            assert int(layer[0]) == i and int(layer[-1]) == i, "contents"
            torch.cuda._sleep(20000000)
        layers.clear()
        torch.cuda.synchronize()
        time.sleep(.2)
    assert int(model.min()) == int(model.max()) == 7, "contents"


torch.zeros(1, device="cuda")
print("ready", flush=True)
for line in sys.stdin:
    word, *arguments = line.split()
    if word == "g":
        hold(*arguments)
    elif word == "look":
        look()
    elif word == "r":
        held.pop()
    elif word == "train":
        train(*arguments)
    elif word == "host":
        pinned = torch.zeros(1 << 20, dtype=torch.uint8).pin_memory()
        plain = torch.zeros(1 << 20, dtype=torch.uint8)
        writer = threading.Thread(target=write_host)
        writer.start()
    print(line.strip(), flush=True)
look()
is_over.set()
if writer:
    writer.join()
print("end", flush=True)
