"""List a process and all its descendants from the kernel's lists, and measure the memory that each holds.

If a process's main thread has ended and others run, the process's own folder in /proc is that of a zombie: it tells of
no memory and no files. Then the folder of another thread does. Source: Linux, proc_pid_task(5).
"""

import io
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

_DEAD = "ZX"
_STILL = "Tt" + _DEAD + "D"  # stopped, dead, or in a wait that can't be interrupted, as a parent is after vfork
_NAMELESS = (b"/dev/zero (deleted)", b"/memfd:", b"/SYSV")  # MAP_ANONYMOUS, memfd_create(2), shmget(2)
MOST_MAPPINGS = 50_000  # of all processes together: a rank has 500 to 3,000, and reading them takes the time
_HELD = (b"RssAnon:", b"RssShmem:", b"VmSwap:", b"VmPTE:", b"HugetlbPages:")  # lines of /proc/<pid>/status, in KiB


def family(pid: int) -> list[psutil.Process]:
    """Return a process and its descendants, parents first. While they start and end others, one may be missing."""
    if not Path("/proc/self/task", str(os.getpid()), "children").exists():  # a kernel without these lists
        with suppress(psutil.NoSuchProcess):
            return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        return []
    pids = [pid]
    for parent in pids:  # `pids` grows in this loop
        pids += _children(parent)
    found = []
    for each in pids:
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(each))
    return found


def first_inside(processes: list[psutil.Process]) -> psutil.Process:
    """Return the first process in a box (bubblewrap's child); it lives as long as the box. IndexError before that."""
    return processes[1]


def _children(pid: int) -> list[int]:
    """Return the children of all threads of a process, since the kernel lists them by thread."""
    children = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as listed:
                children += map(int, listed.read().split())
    return children


def is_still(process: psutil.Process) -> bool:
    """Return True if no thread of the process runs, or could continue by itself."""
    return all(state(thread) in _STILL for thread in threads(process.pid))


def is_alive(process: psutil.Process) -> bool:
    """Return True if a thread of the process has not ended. A zombie's have."""
    return any(state(thread) not in _DEAD for thread in threads(process.pid))


def threads(pid: int) -> set[int]:
    """Return the threads of a process; none if it is gone."""
    with suppress(OSError):
        return set(map(int, os.listdir(f"/proc/{pid}/task")))
    return set()


def state(thread: int) -> str:
    """Return the state of a thread, or of a process's main thread, as the kernel's letter; X if it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{thread}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    return "X"


def told_about(pid: int, name: str) -> bytes:
    """Return what the kernel tells about a process in a file of /proc/<pid>: if that is empty, what it tells about
    another of its threads. Empty for a process that has ended."""
    for folder in _folders(pid):
        with suppress(OSError):
            if told := Path(folder, name).read_bytes():
                return told
    return b""


def open_files(pid: int, name: str = "fd") -> list[str]:
    """Return the paths, in /proc, of a process's open files, or those of another thread if its main thread has ended.
    Of a process that hides its files: none."""
    for folder in _folders(pid):
        with suppress(OSError):
            if paths := [entry.path for entry in os.scandir(f"{folder}/{name}")]:
                return paths
    return []


def _folders(pid: int) -> Iterator[str]:
    yield f"/proc/{pid}"
    yield from (f"/proc/{pid}/task/{thread}" for thread in threads(pid))


def held_bytes(process: psutil.Process) -> int:
    """Bytes of a process: its own memory, memory shared without a file on disk, what of these is swapped out, and the
    tables of its pages, which grow with what it only looks at."""
    for folder in _folders(process.pid):
        with suppress(OSError):
            held = [line for line in _lines(Path(folder, "status")) if line.startswith(_HELD)]
            if held:  # a zombie has no such lines
                return sum(int(line.split()[1]) << 10 for line in held)
    return 0


def _lines(file: Path) -> list[bytes]:
    """Return the lines that the kernel wrote: in names it escapes "\\n", but no other character that may end a line."""
    return [line for line in file.read_bytes().split(b"\n") if line]


def nameless_bytes(processes: list[psutil.Process]) -> int:
    """Bytes of memory that is in no folder, each piece counted once: files of memfd_create, and nameless shared
    mappings as far as no process has them in its own count. ValueError if there are so many mappings that looking at
    them would take long: meanwhile nobody would see what else is used."""
    found: dict[int, int] = {}
    left = MOST_MAPPINGS
    for process in processes:
        maps = told_about(process.pid, "maps")
        left -= maps.count(b"\n")
        if left < 0:
            raise ValueError(f"its processes have more than {MOST_MAPPINGS:,} mappings of memory")
        if any(name in maps for name in _NAMELESS):
            found |= _unseen_bytes(process)
    for process in processes:
        for fd in open_files(process.pid):
            with suppress(OSError):
                if os.readlink(fd).startswith("/memfd:"):
                    about = os.stat(fd)
                    found[about.st_ino] = about.st_blocks * 512
    return sum(found.values())


def _unseen_bytes(process: psutil.Process) -> dict[int, int]:
    """Return, by inode, the bytes of nameless shared mappings that the process's own count leaves out: Size - Rss."""
    found, inode = {}, None
    for line in io.BytesIO(told_about(process.pid, "smaps")):  # of bytes: they end with "\n" only
        first, *rest = line.split(maxsplit=5)
        if not first.endswith(b":"):  # addresses, permissions, offset, device, inode, path
            nameless = rest[0].endswith(b"s") and rest[4:] and rest[4].startswith(_NAMELESS)
            inode = int(rest[3]) if nameless else None
        elif inode is not None and first in (b"Size:", b"Rss:"):
            found[inode] = found.get(inode, 0) + (1 if first == b"Size:" else -1) * (int(rest[0]) << 10)
    return found
