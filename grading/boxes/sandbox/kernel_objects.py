"""Count what a box makes the kernel keep for it, and what no process is charged for: sockets, and files' entries.

A socket's buffers hold what was sent and not yet received, up to 0.4 MiB each, and an empty file some 0.8 KiB. Both
are counted in the box's own network and folders, so there is nothing to count in a box without.
"""

import os
from contextlib import suppress
from pathlib import Path

import psutil

from grading.boxes.sandbox.process_tree_memory import first_inside

FOLDERS = ("tmp", "dev/shm")


def sockets(processes: list[psutil.Process]) -> int:
    """Return the sockets in the box's network."""
    with suppress(OSError, IndexError, ValueError):
        about = Path("/proc", str(first_inside(processes).pid))
        if os.stat(about / "ns" / "net").st_ino != os.stat("/proc/self/ns/net").st_ino:
            return int((about / "net" / "sockstat").read_text().split()[2])  # sockets: used N
    return 0


def files(processes: list[psutil.Process], scratch_bytes: int) -> int:
    """Return the files and folders in the box's temporary folders, of `scratch_bytes` each."""
    found = 0
    for folder in FOLDERS:
        with suppress(OSError, IndexError):
            about = os.statvfs(Path("/proc", str(first_inside(processes).pid), "root", folder))
            if about.f_blocks * about.f_frsize == scratch_bytes:  # otherwise it is our folder
                found += about.f_files - about.f_ffree
    return found
