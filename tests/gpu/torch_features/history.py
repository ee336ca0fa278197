# SPDX-License-Identifier: MIT
"""PyTorch's record of allocations, and the tools that read it."""

import contextlib
import copy
import os
import pickle
import subprocess
import sys
import tempfile
import threading

import torch
from torch.cuda import _memory_viz as viz

from .support import DEVICE, GIB, MIB, block, feature, net, settle, since

GREW, SHRANK = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")


@contextlib.contextmanager
def recorded(stacks="python", **options):
    settle()
    torch.cuda.memory._record_memory_history(stacks=stacks, **options)
    try:
        yield
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def events():
    return torch.cuda.memory._snapshot()["device_traces"][0]


def actions(trace):
    return [event["action"] for event in trace]


def functions(event):
    return [frame["name"] for frame in event.get("frames", ())]


@feature
def record_history():
    """Each event of a block is there once, in order, with its address, its size and who called."""
    with recorded():
        tensor = block(64 * MIB)
        place = tensor.data_ptr()
        del tensor
        torch.cuda.empty_cache()
        trace = events()
    own = [event for event in trace if event["addr"] == place and event["action"] not in GREW + SHRANK]
    assert actions(own) == ["alloc", "free_requested", "free_completed"], actions(trace)
    assert [event["size"] for event in own] == [64 * MIB] * 3
    assert "record_history" in functions(own[0]) and "block" in functions(own[0]), functions(own[0])
    assert "record_history" in functions(own[1]), functions(own[1])
    times = [event["time_us"] for event in trace]
    assert times == sorted(times) and times[0] > 1_500_000_000_000_000
    return f"{len(trace)} events"


@feature
def record_segments():
    """Segments come and go in the record as memory_reserved does, with stacks."""
    with recorded():
        before = torch.cuda.memory_reserved()
        tensor = block(3 * GIB)
        during = torch.cuda.memory_reserved()
        trace = events()
        grew = [event for event in trace if event["action"] in GREW]
        assert grew and sum(e["size"] for e in grew) == during - before, actions(trace)
        assert all("record_segments" in functions(event) for event in grew), functions(grew[0])
        del tensor
        torch.cuda.empty_cache()
        shrank = [event for event in events() if event["action"] in SHRANK]
        assert sum(e["size"] for e in shrank) == during - torch.cuda.memory_reserved()
        assert all("empty_cache" in functions(event) for event in shrank), functions(shrank[0])


@feature
def record_stacks_of_all():
    with recorded(stacks="all"):
        tensor = block(MIB)
        names = functions(next(event for event in events() if event["action"] == "alloc"))
        del tensor
    assert "record_stacks_of_all" in names
    assert any("at::" in name or "c10::" in name or "THP" in name for name in names), names[:10]


@feature
def record_most_entries():
    with recorded(max_entries=50):
        for _ in range(100):
            block(MIB)
        trace = events()
    assert len(trace) == 50, len(trace)
    times = [event["time_us"] for event in trace]
    assert times == sorted(times)


@feature
def record_state_only():
    """Blocks in use have the stack of their allocation."""
    with recorded(enabled="state"):
        tensor = block(48 * MIB)
        snapshot = torch.cuda.memory._snapshot()
    found = [b for s in snapshot["segments"] for b in s["blocks"] if b["address"] == tensor.data_ptr()]
    assert len(found) == 1 and "record_state_only" in functions(found[0]), found


@feature
def record_replays():
    """The events, applied to the blocks before them, give the blocks after them."""

    def live():
        return {b["address"] for s in torch.cuda.memory_snapshot() for b in s["blocks"] if b["state"] != "inactive"}

    model, x = net(), torch.randn(256, 512, device=DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    with recorded():
        now = live()
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        torch.cuda.synchronize()
        trace, wanted = events(), live()
    for event in trace:
        if event["action"] == "alloc":
            assert event["addr"] not in now, "a block was given out twice"
            now.add(event["addr"])
        elif event["action"] == "free_completed":
            assert event["addr"] in now, "a block that was not in use was freed"
            now.remove(event["addr"])
    assert now == wanted, f"{len(now - wanted)} only by events, {len(wanted - now)} only in the snapshot"


@feature
def record_oom():
    size = 1 << 42
    with recorded():
        try:
            block(size)
            raise AssertionError("4 TiB were given out")
        except torch.cuda.OutOfMemoryError:
            pass
        trace = events()
    found = [event for event in trace if event["action"] == "oom"]
    assert len(found) == 1 and found[0]["size"] >= size and 0 < found[0]["device_free"] < size, found


@feature
@since(2, 10)
def record_metadata():
    with recorded():
        torch.cuda.memory._set_memory_metadata("step 7")
        assert torch.cuda.memory._get_memory_metadata() == "step 7"
        tensor = block(MIB)
        torch.cuda.memory._set_memory_metadata("")
        trace = events()
        del tensor
    found = [event for event in trace if event["action"] == "alloc"]
    assert found[-1].get("user_metadata") == "step 7", found[-1]


@feature
@since(2, 10)
def record_metadata_of_one_thread():
    seen = []
    torch.cuda.memory._set_memory_metadata("here")
    thread = threading.Thread(target=lambda: seen.append(torch.cuda.memory._get_memory_metadata()))
    thread.start()
    thread.join()
    assert torch.cuda.memory._get_memory_metadata() == "here" and seen == [""], seen
    torch.cuda.memory._set_memory_metadata("")


@feature
@since(2, 14)
def annotate_tensor():
    """A note on a live block is an event of its own; there is none on what is no block."""
    assert torch.cuda.memory._memory_metadata_supported()
    try:
        torch._C._cuda_annotateMemory(4096, "nothing")
        raise AssertionError("what is no block was annotated")
    except RuntimeError as error:
        assert "no live allocation found at pointer" in str(error), error
    tensor = block(MIB)
    with recorded():
        torch.cuda.memory._annotate_tensor(tensor[100:], "packed")
        trace = events()
    assert actions(trace) == ["annotate"], actions(trace)
    found = trace[0]
    assert (found["addr"], found["size"], found["user_metadata"]) == (tensor.data_ptr(), MIB, "packed"), found


@feature
@since(2, 12)
def traceback_of_a_block():
    with recorded():
        tensor = block(MIB)
        frames = torch.cuda.memory._allocation_traceback(tensor.data_ptr())
        assert torch.cuda.memory._allocation_traceback(tensor.data_ptr() + 512) is None
    assert "traceback_of_a_block" in [frame["name"] for frame in frames], frames


@feature
@since(2, 14)
def record_pinned():
    """Pinned host memory is in the same snapshot."""
    with recorded(record_pinned_host_memory=True):
        tensor = torch.empty(1000, dtype=torch.uint8, pin_memory=True)
        kept = block(MIB)
        snapshot = torch.cuda.memory._snapshot()
    place = tensor.data_ptr()
    assert any(s["address"] <= place < s["address"] + s["total_size"] for s in snapshot["host_segments"])
    assert "alloc" in actions(snapshot["host_traces"]) and "alloc" in actions(snapshot["device_traces"][0])
    del kept


@feature
@since(2, 13)
def snapshot_settings():
    """A snapshot names PyTorch's settings, those of pinned memory, too."""
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    assert settings["max_round_threshold"] == -1 and settings["max_cached_size"] == -1, settings


@feature
def memory_viz():
    """_dump_snapshot of a whole run is read by each tool of torch.cuda._memory_viz that needs no network."""
    with tempfile.TemporaryDirectory() as folder:
        path, page = os.path.join(folder, "run.pickle"), os.path.join(folder, "run.html")
        with recorded():
            model, x = net(), torch.randn(256, 512, device=DEVICE)
            for _ in range(3):
                model(x).square().mean().backward()
            kept = block(96 * MIB)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = x * 2
            torch.cuda.memory._dump_snapshot(path)
        with open(path, "rb") as file:
            data = pickle.load(file)
        for text in (viz.trace_plot(data), viz.trace_plot(data, plot_segments=True),
                     viz.trace_plot(copy.deepcopy(data), filter_freed=True),  # which changes what it is given
                     viz.segment_plot(data)):
            assert "<script" in text and len(text) > 1000, len(text)
        assert "MiB" in viz.segsum(data)
        assert "96.0MiB" in viz.trace(data)
        assert viz.calc_active(data["segments"][0]) >= 0
        for tool in ("trace_plot", "segment_plot"):
            done = subprocess.run([sys.executable, "-m", "torch.cuda._memory_viz", tool, path, "-o", page],
                                  capture_output=True, text=True, check=False)
            assert done.returncode == 0 and os.path.getsize(page) > 1000, done.stderr[-300:]
        assert {"segments", "device_traces", "allocator_settings"} <= set(data)
        del kept, graph, y
