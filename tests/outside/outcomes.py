# SPDX-License-Identifier: MIT
"""A plug-in of pytest: adds "OUTCOME SECONDS NAME" for each test to the file that OUTSIDE_OUTCOMES names, and "NAME REASON"
for each failure to the file NAME.reasons beside it.

A test that has begun and not ended stands in the file NAME.begun beside it, so that one that ends the process is known.
Where a test asks CuPy for its own pool and OUTSIDE_CUPY_ASYNC is set, CuPy asks CUDA's pools (malloc_async)."""

import os

path = os.environ["OUTSIDE_OUTCOMES"]
sums = {}


def is_worker():
    return "PYTEST_XDIST_WORKER" in os.environ  # the process that started it hears of all


def pytest_configure(config):
    if os.environ.get("OUTSIDE_CUPY_ASYNC"):
        import cupy
        cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)


def pytest_runtest_logstart(nodeid, location):
    if not is_worker():
        with open(path + ".begun", "w") as file:
            file.write(nodeid)


def last_words(report):
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr)
    return " | ".join(line.strip() for line in text.splitlines() if line.strip())[:400]


def pytest_runtest_logreport(report):
    if is_worker():
        return
    outcome, seconds = sums.get(report.nodeid, ("passed", 0))
    seconds += report.duration
    if outcome == "passed" and report.outcome != "passed":
        outcome = report.outcome
        if outcome == "failed":
            with open(path + ".reasons", "a") as file:
                file.write(f"{report.nodeid}\t{last_words(report)}\n")
    sums[report.nodeid] = outcome, seconds
    if report.when in ("setup", "call"):
        return  # teardown follows; if a test ended its worker, there is one report without a phase
    with open(path, "a") as file:
        file.write(f"{outcome}\t{seconds:.6f}\t{report.nodeid}\n")
    if os.path.exists(path + ".begun"):
        os.unlink(path + ".begun")
