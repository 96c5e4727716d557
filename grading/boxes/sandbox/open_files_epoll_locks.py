"""Count what a box makes the kernel keep behind its open files: the files themselves, what epoll watches, locks of
files, and files in flight, which were sent through a socket and not yet received.

All boxes of a user share what epoll may watch, and a lock takes 0.2 KiB. The kernel tells all of it in
/proc/<pid>/fdinfo. A process that calls itself not dumpable hides its files from an ordinary user, and memory in them.

A file in flight is in no process's list, and a socket in flight may hold more of them. Most boxes can't make files of
memory (`refused_calls`), and files in their folders are counted there. What is left in flight: 4,096 files of a user,
with 100 MiB in pipes, and 0.2 to 0.4 MiB in a socket, of which the box may have 1,000 in all. In a box with GPUs a file
in flight may hold a gigabyte. Source: Linux, proc_pid_fdinfo(5), PR_SET_DUMPABLE(2const), pipe(7), and unix(7) on
SCM_RIGHTS.
"""

import os
import re
from collections import Counter
from contextlib import suppress

import psutil

OPEN, WATCHED, LOCKS, IN_FLIGHT = "open files", "files that epoll watches", "locks of files", "files in flight"
HIDING = "processes that hide their open files"
_LINES = {WATCHED: b"\ntfd:", LOCKS: b"\nlock:"}
_SENT = re.compile(rb"^scm_fds:\s*(\d+)$", re.M)
_LONGEST = 1 << 20  # bytes that are read about a file: some 20,000 lines
MOST_OPEN = 50_000  # nothing is read about more


def kept(processes: list[psutil.Process]) -> Counter[str]:
    """Return how many of each these processes have. Of a file that several have open, each of them counts."""
    found: Counter[str] = Counter()
    folders = {}
    for process in processes:
        with suppress(OSError):
            folder = f"/proc/{process.pid}/fdinfo"
            folders[folder] = names = os.listdir(folder)
            found[OPEN] += len(names)
            found[HIDING] += _is_hidden(f"/proc/{process.pid}/fd")
    if found[OPEN] <= MOST_OPEN:
        for folder, names in folders.items():
            for name in names:
                with suppress(OSError), open(f"{folder}/{name}", "rb") as file:
                    found.update(_of_file(file.read(_LONGEST)))
    return found


def unseen(processes: list[psutil.Process]) -> int:
    """Return the files in flight, and the processes that hide their files."""
    found = kept(processes)
    return found[IN_FLIGHT] + found[HIDING]


def _is_hidden(folder: str) -> bool:
    try:
        os.scandir(folder).close()
    except PermissionError:
        return True
    return False


def _of_file(about: bytes) -> dict[str, int]:
    of_kinds = {kind: about.count(line) for kind, line in _LINES.items()}
    return of_kinds | {IN_FLIGHT: sum(int(n) for n in _SENT.findall(about))}
