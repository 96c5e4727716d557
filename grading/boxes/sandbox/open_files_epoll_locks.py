"""Count what a box makes the kernel keep behind its open files: the files themselves, what epoll watches, locks of
files, and files in flight, which were sent through a socket and not yet received.

All boxes of a user share what epoll may watch, and a lock takes 0.2 KiB. The kernel tells all of it in
/proc/<pid>/fdinfo. A process hides its files, and memory in them, if it calls itself not dumpable (from an ordinary
user), if its main thread has ended, or if one of its threads has files of its own.

A file in flight is in no process's list, and a socket in flight may hold more of them. Most boxes can't make files of
memory (`refused_calls`), and files in their folders are counted there. What is left in flight: 4,096 files of a user,
with 100 MiB in pipes, and 0.2 to 0.4 MiB in a socket, of which the box may have 1,000 in all. In a box with GPUs a file
in flight may hold a gigabyte. Source: Linux, proc_pid_fdinfo(5), PR_SET_DUMPABLE(2const), pipe(7), and unix(7) on
SCM_RIGHTS, kcmp(2), unshare(2) on CLONE_FILES.
"""

import ctypes
import os
import platform
import re
from collections import Counter
from contextlib import suppress

import psutil

from grading.boxes.sandbox.process_tree_memory import held_bytes, open_files, state, threads

OPEN, WATCHED, LOCKS, IN_FLIGHT = "open files", "files that epoll watches", "locks of files", "files in flight"
HIDING = "processes that hide their open files"
_LINES = {WATCHED: b"\ntfd:", LOCKS: b"\nlock:"}
_SENT = re.compile(rb"^scm_fds:\s*(\d+)$", re.M)
_LONGEST = 1 << 20  # bytes that are read about a file: some 20,000 lines
MOST_OPEN = 50_000  # nothing is read about more
_KCMP = {"x86_64": 312, "aarch64": 272}.get(platform.machine())  # the call's number
_FILES = 2  # KCMP_FILES
_libc = ctypes.CDLL(None)


def kept(processes: list[psutil.Process]) -> Counter[str]:
    """Return how many of each these processes have. Of a file that several have open, each of them counts."""
    found: Counter[str] = Counter()
    paths = [path for process in processes for path in open_files(process.pid, "fdinfo")]
    found[OPEN] = len(paths)
    found[HIDING] = sum(map(_hides, processes))
    for path in paths if len(paths) <= MOST_OPEN else ():
        with suppress(OSError), open(path, "rb") as file:
            found.update(_of_file(file.read(_LONGEST)))
    return found


def unseen(processes: list[psutil.Process]) -> int:
    """Return the files in flight, and the processes that hide their files."""
    found = kept(processes)
    return found[IN_FLIGHT] + found[HIDING]


def _hides(process: psutil.Process) -> bool:
    """Return True if a process has files that nobody can look at. One that ends has no memory any more."""
    others = threads(process.pid) - {process.pid}
    try:
        os.scandir(f"/proc/{process.pid}/fd").close()
    except PermissionError:
        return held_bytes(process) > 0
    except OSError:
        return False
    if others and state(process.pid) == "Z":
        return held_bytes(process) > 0
    return any(_have_different_files(process.pid, thread) for thread in others)


def _have_different_files(thread: int, other: int) -> bool:
    """Return True if two threads each have a table of open files of their own. False if the kernel doesn't tell."""
    return _KCMP is not None and _libc.syscall(_KCMP, thread, other, _FILES, 0, 0) > 0


def _of_file(about: bytes) -> dict[str, int]:
    of_kinds = {kind: about.count(line) for kind, line in _LINES.items()}
    return of_kinds | {IN_FLIGHT: sum(int(n) for n in _SENT.findall(about))}
