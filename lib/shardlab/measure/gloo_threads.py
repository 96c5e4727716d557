"""When gloo has let go of a collective's tensors.

`work.wait()` returns as soon as the worker thread says that the collective is through. The thread's own reference to
the tensors dies a moment later: microseconds on an idle machine, milliseconds where more threads want to run than there
are cores. Whoever measures memory waits for that, or a buffer's death would depend on a race.

Source: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, runLoop.
"""

import time
from pathlib import Path

WORKER = "(pt_gloo_runloop) "  # in the kernel's line on a thread; its state comes behind it
LOOK_S = 200e-6  # between two looks: time for a worker that waits for the GIL, too
AT_MOST_S = 0.1  # it may be busy with the next collective
THREADS = Path("/proc/self/task")


def wait_until_idle() -> None:
    """Until gloo's workers were asleep twice in a row, at most `AT_MOST_S`; where there is no /proc, for two looks."""
    end_s, asleep = time.monotonic() + AT_MOST_S, 0
    while asleep < 2 and time.monotonic() < end_s:
        time.sleep(LOOK_S)
        asleep = 0 if any(map(_runs, THREADS.glob("*/stat"))) else asleep + 1


def _runs(thread: Path) -> bool:
    try:
        return f"{WORKER}R" in thread.read_text()
    except OSError:  # it has ended
        return False
