#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""torch-features: what PyTorch programs do with GPU memory beyond making tensors; each feature proves its result.

    torch-features.py [NAME...] [--json FILE] [--list]

A NAME is a feature or a group of features; without one, all run.  The programs know nothing of weir: compare

    python torch-features.py
    weir run -- python torch-features.py

The features of a group run in one process.  If a feature ends that process or does not return in time, it fails, and
another process runs the rest.  Prints `NAME ok', `NAME skip REASON' or `NAME FAIL REASON' for each feature, and the
counts.  Exits with 1 if a feature failed, with 2 if there is no GPU.
"""

import argparse
import json
import os
import selectors
import subprocess
import sys
import time

sys.dont_write_bytecode = True

from torch_features import GROUPS, names_of  # pylint: disable=wrong-import-position

MARK = "\x1efeature "  # a worker's lines about features begin so, whatever else it prints


def tell(**words):
    print(MARK + json.dumps(words), flush=True)


def work(group, names):
    """In a process of its own: the features with these names."""
    from torch_features import load  # imports PyTorch
    from torch_features.support import Skip, settle
    features = load(group)
    for name in names:
        tell(begins=name, timeout=features[name].timeout)
        start, status, reason = time.monotonic(), "ok", ""
        try:
            reason = features[name]()
        except Skip as skip:
            status, reason = "skip", str(skip)
        except BaseException as error:  # pylint: disable=broad-exception-caught
            status, reason = "FAIL", f"{type(error).__name__}: {error}"
        tell(name=name, status=status, reason="" if reason is None else str(reason),
             seconds=round(time.monotonic() - start, 2))
        try:
            settle()
        except Exception as error:  # pylint: disable=broad-exception-caught
            print(f"after {name}: {error}", file=sys.stderr)
            os._exit(1)  # the context is lost; another process goes on
    sys.stdout.flush()


def first_line(text, most=240):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[:2])[:most]


def show(row):
    reason = first_line(row["reason"])
    print(row["name"], row["status"], *([reason] if reason else []), f"({row['seconds']:.1f} s)", flush=True)


def lines_of(process, limit):
    """Lines of the process until its end; limit() is when to stop waiting."""
    selector = selectors.DefaultSelector()
    selector.register(process.stdout, selectors.EVENT_READ)
    held = b""
    while True:
        left = limit() - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if not selector.select(min(left, 5)):
            if process.poll() is not None:
                return
            continue
        part = os.read(process.stdout.fileno(), 1 << 16)
        if not part:
            return
        *whole, held = (held + part).split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)


def supervise(group, names, rows):
    """Runs a worker until it ends; returns the names that are still to run, fewer than before."""
    had = len(names)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen([sys.executable, os.path.abspath(__file__), "--worker", group, *names],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        os.set_blocking(process.stderr.fileno(), False)
        running, began, ends = None, time.monotonic(), [time.monotonic() + 120]
        noise = b""
        why = None
        try:
            for line in lines_of(process, lambda: ends[0]):
                noise = (noise + (process.stderr.read() or b""))[-4000:]
                if not line.startswith(MARK):
                    continue
                words = json.loads(line[len(MARK):])
                if "begins" in words:
                    running, began = words["begins"], time.monotonic()
                    ends[0] = began + words["timeout"]
                else:
                    rows.append({"group": group, **words})
                    show(rows[-1])
                    names.remove(words["name"])
                    running = None
                    ends[0] = time.monotonic() + 60
        except TimeoutError:
            why = f"did not return within {time.monotonic() - began:.0f} s"
            process.kill()
        status = process.wait()
        noise = (noise + (process.stderr.read() or b""))[-4000:]
    if not names:
        return names
    if why is None:
        last = noise.decode(errors="replace").strip().splitlines()[-1:] or [""]
        why = f"the process ended with status {status}: {last[0]}"
    if running is None and len(names) < had and rows[-1]["status"] == "ok":
        rows[-1].update(status="FAIL", reason="what followed it: " + why)
        show(rows[-1])
    elif running is None and len(names) == had:
        running = names[0]  # none has begun
    if running is not None:
        rows.append({"group": group, "name": running, "status": "FAIL", "reason": why,
                     "seconds": round(time.monotonic() - began, 2)})
        show(rows[-1])
        names.remove(running)
    return names


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="a feature, or one of " + ", ".join(GROUPS))
    parser.add_argument("--json", metavar="FILE", help="where to write the results as JSON")
    parser.add_argument("--list", action="store_true", help="print the names of features by group")
    parser.add_argument("--worker", metavar="GROUP", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.names)
        return 0
    known = {group: names_of(group) for group in GROUPS}
    unknown = [name for name in options.names
               if name not in known and not any(name in names for names in known.values())]
    if unknown:
        parser.error(f"there is no feature {', '.join(unknown)}")
    if options.list:
        for group, names in known.items():
            print(f"{group}:", *names)
        return 0
    about = "import torch; print(torch.__version__, torch.cuda.get_device_name())"
    found = subprocess.run([sys.executable, "-c", about], capture_output=True, text=True, check=False)
    if found.returncode:
        print("torch-features:", found.stderr.strip().splitlines()[-1:], file=sys.stderr)
        return 2
    print("# PyTorch", found.stdout.strip().splitlines()[-1])
    rows, start = [], time.monotonic()
    for group, names in known.items():
        left = [name for name in names if not options.names or name in options.names or group in options.names]
        while left:
            left = supervise(group, left, rows)
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(rows, file, indent=1)
    counts = {status: sum(row["status"] == status for row in rows) for status in ("ok", "FAIL", "skip")}
    print(f"{counts['ok']} ok, {counts['FAIL']} failed, {counts['skip']} skipped, "
          f"{time.monotonic() - start:.0f} s")
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
