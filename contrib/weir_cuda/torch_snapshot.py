# SPDX-License-Identifier: MIT
"""weir_cuda.torch_snapshot: a memory snapshot of PyTorch as a trace for `weir replay' and `weir bench'.

    python -m weir_cuda.torch_snapshot [--segments] SNAPSHOT TRACE

SNAPSHOT is what torch.cuda.memory._dump_snapshot wrote, after torch.cuda.memory._record_memory_history; its
device_traces are read: blocks as tensors had them, each freed when its free was asked for; with --segments what
PyTorch's allocator itself asked of the driver.  TRACE is packed if its name ends in .gz; - is standard output.

Needs no PyTorch, and runs nothing that is in the file: a pickle that holds more than plain values is refused.
"""

from __future__ import annotations

import argparse
import gzip
import io
import pickle
import sys
from typing import Any, Callable, NoReturn

BLOCKS = {"alloc": "a", "free_requested": "f"}
SEGMENTS = {"segment_alloc": "a", "segment_map": "a", "segment_free": "f", "segment_unmap": "f"}
KNOWN = {*BLOCKS, *SEGMENTS, "free_completed", "oom", "snapshot", "user_defined", "workspace_snapshot"}


class Refused(Exception):
    """A file that is no snapshot."""


class Plain(pickle.Unpickler):
    """Dictionaries, lists, texts and numbers; what would be looked up in a module, or made by a call, is not."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise Refused(f"it needs {module}.{name}, which is no plain value")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise Refused("it refers to what is not in it")


def load(path: str) -> Any:
    try:
        with open(path, "rb") as file:
            return Plain(io.BytesIO(file.read())).load()
    except OSError as error:
        raise Refused(error.strerror) from None
    except Refused:
        raise
    except Exception as error:  # whatever bytes do to the unpickler
        raise Refused(f"it cannot be unpickled: {type(error).__name__}: {error}") from None


def number(entry: dict[str, Any], key: str, where: str) -> int:
    value = entry.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise Refused(f"{where}: {key} {value!r} is no whole number")
    return value


def take_entries(snapshot: Any) -> list[tuple[int, int, str, dict[str, Any], str]]:
    """(time_us, device, action, entry, where) of all devices, in the order of their times."""
    traces = snapshot.get("device_traces") if isinstance(snapshot, dict) else None
    if not isinstance(traces, list) or not all(isinstance(trace, list) for trace in traces):
        raise Refused("it has no device_traces: was _record_memory_history on?")
    entries = []
    for device, trace in enumerate(traces):
        last = 0
        for index, entry in enumerate(trace):
            where = f"device {device}, entry {index}"
            if not isinstance(entry, dict) or entry.get("action") not in KNOWN:
                raise Refused(f"{where}: no known action")
            if "time_us" in entry:  # since PyTorch 2.1
                last = max(last, number(entry, "time_us", where))
            entries.append((last, device, entry["action"], entry, where))
    entries.sort(key=lambda entry: entry[0])  # which leaves each device's own order
    return entries


def convert(snapshot: Any, segments: bool, write: Callable[[str], object]) -> int:
    """How many events were written."""
    actions = SEGMENTS if segments else BLOCKS
    kind = "kind=segment" if segments else "kind=tensor"
    entries = take_entries(snapshot)
    start = entries[0][0] if entries else 0
    live: dict[tuple[int, int], tuple[int, int, int]] = {}
    streams: dict[tuple[int, int], int] = {}
    count = next_id = unknown = gone = 0

    def end(device: int, address: int, time: int, stream: int | None = None) -> int:
        block, size, own = live.pop((device, address))
        write(f"{time} f {block} {size} {own if stream is None else stream} dev={device} {kind}\n")
        return size

    write("# weir-trace 1\n# a memory snapshot of PyTorch\n")
    for time, device, action, entry, where in entries:
        if action == "oom":
            operation = "x"
        elif action in actions:
            operation = actions[action]
        else:
            continue
        size, time = number(entry, "size", where), time - start
        stream = streams.setdefault((device, number(entry, "stream", where)), len(streams))
        if operation == "x":
            write(f"{time} x {next_id} {size} {stream} dev={device} {kind}\n")
            next_id += 1
            count += 1
            continue
        address = number(entry, "addr", where)
        if operation == "a":
            if (device, address) in live:
                end(device, address, time)
                gone += 1
            live[device, address] = next_id, size, stream
            write(f"{time} a {next_id} {size} {stream} dev={device} {kind}\n")
            next_id += 1
            count += 1
        elif (device, address) not in live:
            unknown += 1
        else:
            stop = address + size  # an unmap may be of several pieces
            while address < stop and (device, address) in live:
                address += max(end(device, address, time, stream), 1)
                count += 1
    if unknown:
        write(f"# {unknown} frees left out: their blocks are unknown\n")
    if gone:
        write(f"# {gone} frees added: the address was handed out anew\n")
    return count


def main() -> int:
    parser = argparse.ArgumentParser(prog="weir_cuda.torch_snapshot", description="A memory snapshot of PyTorch as a trace for weir.")
    parser.add_argument("--segments", action="store_true",
                        help="what PyTorch asked of the driver, not what tensors asked of PyTorch")
    parser.add_argument("snapshot", metavar="SNAPSHOT")
    parser.add_argument("trace", metavar="TRACE", help="- is standard output")
    options = parser.parse_args()
    lines: list[str] = []
    try:
        if convert(load(options.snapshot), options.segments, lines.append) == 0:
            raise Refused("it has no such events")
    except Refused as error:
        print(f"weir_cuda.torch_snapshot: {options.snapshot}: {error}", file=sys.stderr)
        return 1
    text = "".join(lines).encode()
    try:
        if options.trace == "-":
            sys.stdout.buffer.write(text)
        else:
            with (gzip.open if options.trace.endswith(".gz") else open)(options.trace, "wb") as file:
                file.write(text)
    except OSError as error:
        print(f"weir_cuda.torch_snapshot: {options.trace}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
