# SPDX-License-Identifier: MIT
"""The program weir from Python: the console script, and replays of traces as numbers."""

from __future__ import annotations

import os
import sys

from . import _library

TYPE_CHECKING = False  # typing takes longer to import than all else here
if TYPE_CHECKING:
    from typing import Any, NoReturn


class Replay:
    """A trace on one configuration.  Times are nanoseconds and memory is bytes; None: there is no such figure.

    On the device model a time is what the driver of the modelled GPU takes, and what weir itself takes here.
    """

    trace: str
    engine: str
    device: str
    iteration_ns: list[int]  # allocations and frees of each iteration
    steady_ns: int | None  # the mean of the steady iterations
    requested_peak: int | None  # the most that the program had requested at once
    reserved_peak: int | None  # the most that was taken from the device; None if requests failed
    failed: int  # requests that failed for lack of memory
    stall_ns: int  # the part of the time in which requests waited for growth
    result: dict[str, Any]  # the row, as weir-json(7) lists it

    def __init__(self, engine: str, device: str, result: dict[str, Any]) -> None:
        self.trace = result["trace"]
        self.engine = result["options"].get("engine", engine)
        self.device = device
        self.iteration_ns = result["iterations"]["alloc_ns"]
        self.steady_ns = result.get("steady_mean_ns")
        self.requested_peak = result.get("requested_peak_bytes")
        self.reserved_peak = result.get("reserved_peak_bytes")
        self.failed = result["failed"]
        self.stall_ns = result.get("stall_ns") or 0
        self.result = result

    def __repr__(self) -> str:
        return f"<{self.trace} on {self.engine}, {self.device}: reserved_peak={self.reserved_peak}, failed={self.failed}>"

    @property
    def overhead(self) -> float | None:
        """Reserved over requested memory at their peaks."""
        return self.reserved_peak / self.requested_peak if self.reserved_peak and self.requested_peak else None


def replay(
    trace: str | os.PathLike[str],
    engine: str = "mapped",
    *,
    device: str = "model",
    iterations: int | None = None,
    **settings: Any,
) -> Replay:
    """Replays a trace on an engine, and returns the figures: without a GPU, on the device model.

    trace       a file, or the name of a trace that comes with weir ("gpt2-train")
    engine      as in weir-settings(7)
    device      "model", or "cuda" for the GPU
    iterations  stop after so many; None: all
    settings    of weir-settings(7), with _ for -: limit="8GiB", growth="exact"

    The variables WEIR_ count below what is named here.  RuntimeError: what the program says.
    """
    import json
    import subprocess

    command = [_library.program(), "replay", "--json", "-", "--device", device, "--engine", engine]
    if iterations is not None:
        command += ["--iterations", str(iterations)]
    for name, value in settings.items():
        text = ("on" if value else "off") if isinstance(value, bool) else str(value)
        command.append(f"--{name.replace('_', '-')}={text}")
    path = os.fspath(trace)
    command += ["--", path]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    try:
        document = json.loads(ran.stdout)
        row = document["rows"][0]
    except (ValueError, LookupError):
        raise RuntimeError(f"{' '.join(command)}: {ran.stderr.strip()}") from None
    if row["error"]:
        raise RuntimeError(f"{path}: {row['error']}")
    return Replay(engine, document["device"], row)


def main() -> NoReturn:
    """The program takes this process over: its arguments, exit status and signals are its own."""
    try:
        program = _library.program()
        os.execv(program, [program, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"weir: {error}")
