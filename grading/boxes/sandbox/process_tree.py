"""A process and all that descends from it, by the kernel's own lists, and what each of them holds."""

import os
from contextlib import suppress
from pathlib import Path

import psutil

_STILL = "TtZXD"  # stopped, dead, or waiting for what can't be interrupted, as a parent does after vfork
_NAMELESS = (b"/dev/zero (deleted)", b"/memfd:", b"/SYSV")  # MAP_ANONYMOUS, memfd_create(2), shmget(2)
_HELD = (b"RssAnon:", b"RssShmem:", b"VmSwap:")  # lines of /proc/<pid>/status, in KiB


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


def first_inside(processes: list[psutil.Process]) -> psutil.Process:
    """Of the family of a bubblewrap: it lives as long as the box does. Raises IndexError before there is one."""
    return processes[1]


def _children(pid: int) -> list[int]:
    """Of all threads, since each has its own."""
    children = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as listed:
                children += map(int, listed.read().split())
    return children


def is_still(process: psutil.Process) -> bool:
    """Whether none of its threads runs, or could by itself."""
    with suppress(OSError):
        for thread in os.scandir(f"/proc/{process.pid}/task"):
            with suppress(OSError):
                state = Path(thread.path, "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
                if state not in _STILL:
                    return False
    return True


def held_bytes(process: psutil.Process) -> int:
    """Its own memory, what it shares of no file, and what of that is swapped out."""
    held = 0
    with suppress(OSError):
        for line in _lines(Path("/proc", str(process.pid), "status")):
            if line.startswith(_HELD):
                held += int(line.split()[1]) << 10
    return held


def _lines(file: Path) -> list[bytes]:
    """As the kernel wrote them: in names that somebody chose it escapes "\\n", and nothing else that may end a line."""
    return [line for line in file.read_bytes().split(b"\n") if line]


def nameless_bytes(processes: list[psutil.Process]) -> int:
    """In memory that stands in no folder, each piece counted once: files of memfd_create; and of what is mapped to be
    shared by no name, what may be there though no process has it in its own count."""
    found: dict[int, int] = {}
    for process in processes:
        with suppress(OSError):
            found |= _unseen_bytes(process)
    for process in processes:
        with suppress(OSError):
            for fd in os.scandir(f"/proc/{process.pid}/fd"):
                with suppress(OSError):
                    if os.readlink(fd.path).startswith("/memfd:"):
                        about = os.stat(fd.path)
                        found[about.st_ino] = about.st_blocks * 512
    return sum(found.values())


def _unseen_bytes(process: psutil.Process) -> dict[int, int]:
    """By inode, of its mappings that are shared by no name: what of their size is in no process's count."""
    folder, found, inode = Path("/proc", str(process.pid)), {}, None
    if not any(name in (folder / "maps").read_bytes() for name in _NAMELESS):
        return {}
    for line in _lines(folder / "smaps"):
        first, *rest = line.split(maxsplit=5)
        if not first.endswith(b":"):  # addresses, permissions, offset, device, inode, path
            nameless = rest[0].endswith(b"s") and rest[4:] and rest[4].startswith(_NAMELESS)
            inode = int(rest[3]) if nameless else None
        elif inode is not None and first in (b"Size:", b"Rss:"):
            found[inode] = found.get(inode, 0) + (1 if first == b"Size:" else -1) * (int(rest[0]) << 10)
    return found
