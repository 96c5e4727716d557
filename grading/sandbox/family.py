"""A process and all that descends from it, by the kernel's own lists: no need to look at all processes there are."""

import os
from contextlib import suppress
from pathlib import Path

import psutil


def family(pid: int) -> list[psutil.Process]:
    """Parents before their children. While they start and end others, one may be missing: look again."""
    if not Path("/proc/self/task", str(os.getpid()), "children").exists():  # a kernel without these lists
        with suppress(psutil.NoSuchProcess):
            return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        return []
    pids = [pid]
    for parent in pids:  # which grows meanwhile
        pids += _children(parent)
    found = []
    for each in pids:
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(each))
    return found


def _children(pid: int) -> list[int]:
    """Of all threads, since each has its own."""
    children = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as listed:
                children += map(int, listed.read().split())
    return children
