# SPDX-License-Identifier: MIT
"""Programs that end in the middle: their exit status is theirs, and nothing but their own words is printed."""

import os
import signal
import subprocess
import sys

from .support import feature, program

BEGIN = """
import os, signal, sys, threading, torch
live = [torch.ones(1 << n, device='cuda') for n in range(4, 26)]
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    live += [torch.ones(1 << 20, device='cuda') for _ in range(10)]
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = live[10] * 2
graph.replay()
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    live.append(torch.ones(1 << 20, device='cuda'))
print('ready', flush=True)
"""


def ends(end, status, words="ready", errors="", said_by_others=False):
    """errors: how a line of standard error begins; without it there are at most PyTorch's warnings."""
    done = program(BEGIN + end)
    assert done.returncode == status, f"status {done.returncode}, not {status}: {done.stderr.strip()[-300:]}"
    assert done.stdout.split() == words.split(), done.stdout
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    if errors:
        assert any(line.startswith(errors) for line in lines), done.stderr[-300:]
    else:
        assert all("Warning" in line or line.startswith(("[W", "  ")) for line in lines), done.stderr[-300:]
    assert said_by_others or "weir" not in done.stderr.lower(), done.stderr[-300:]


@feature
def end_of_program():
    ends("", 0)


@feature
def sys_exit():
    ends("sys.exit(3)", 3)


@feature
def os_exit():
    ends("os._exit(4)", 4)


@feature
def exception():
    ends("raise ValueError('as planned')", 1, errors="ValueError: as planned")


@feature
def uncaught_oom():
    ends("torch.empty(1 << 42, dtype=torch.uint8, device='cuda')", 1,
         errors="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4096.00 GiB", said_by_others=True)


@feature
def abort():
    ends("import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.abort()", -signal.SIGABRT)


@feature
def exit_while_a_thread_allocates():
    """The program ends in the middle of another thread's request."""
    ends("""
def work():
    for i in range(100000):
        torch.full((1 << 16,), i, device='cuda')
threading.Thread(target=work, daemon=True).start()
threading.Event().wait(0.2)
os._exit(6)""", 6)


@feature
def exit_with_work_under_way():
    ends("torch.cuda._sleep(1_000_000_000); del live; sys.exit(7)", 7)


@feature
def exit_while_recording():
    ends("torch.cuda.memory._record_memory_history(); x = live[3] * 2; sys.exit(8)", 8)


@feature
def atexit_uses_memory():
    ends("""
import atexit
atexit.register(lambda: print(int(torch.ones(1000, device='cuda').sum())))""", 0, words="ready 1000")


@feature
def atexit_frees_last():
    """Tensors in a module's globals and in a cycle go as the interpreter ends."""
    ends("""
class Node: pass
one, other = Node(), Node()
one.other, other.other, one.tensor = other, one, torch.ones(1 << 22, device='cuda')
import builtins
builtins.kept = torch.ones(1 << 22, device='cuda')""", 0)


def signalled(number, status):
    with subprocess.Popen([sys.executable, "-c", BEGIN + "threading.Event().wait(40)"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=40)
    assert process.returncode == status, f"status {process.returncode}: {err[-300:]}"
    assert not out and "weir" not in err.lower(), out + err[-300:]
    return err


@feature
def sigterm():
    assert not signalled(signal.SIGTERM, -signal.SIGTERM)


@feature
def sigint():
    assert "KeyboardInterrupt" in signalled(signal.SIGINT, -signal.SIGINT)


@feature
def sigkill():
    assert not signalled(signal.SIGKILL, -signal.SIGKILL)
