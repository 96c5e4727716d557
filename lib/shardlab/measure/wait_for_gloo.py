"""Wait until gloo has released a collective's tensors.

`work.wait()` returns as soon as the worker thread says that the collective has finished. The thread drops its own
references to the tensors a moment later: microseconds on an idle machine, milliseconds if more threads want to run than
there are cores. Measure memory only after that, or the time at which a buffer is freed depends on a race.

Source: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, runLoop.
"""

import time
from pathlib import Path

WORKER = "(pt_gloo_runloop) "  # in a thread's line in /proc; the thread's state follows
LOOK_S = 200e-6  # between two looks: long enough for a worker that waits for the GIL
AT_MOST_S = 0.1  # a worker may be busy with the next collective
THREADS = Path("/proc/self/task")


def wait_until_idle() -> None:
    """Wait until gloo's workers slept at two looks in a row, at most `AT_MOST_S`; without /proc, for two looks."""
    end_s, asleep = time.monotonic() + AT_MOST_S, 0
    while asleep < 2 and time.monotonic() < end_s:
        time.sleep(LOOK_S)
        asleep = 0 if any(map(_runs, THREADS.glob("*/stat"))) else asleep + 1


def _runs(thread: Path) -> bool:
    try:
        return f"{WORKER}R" in thread.read_text()
    except OSError:  # the thread has ended
        return False
