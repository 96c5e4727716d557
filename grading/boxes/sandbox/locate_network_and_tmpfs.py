"""What a box has of its own, as it is seen from outside: its network, and its temporary folders."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from grading.boxes.sandbox.process_tree_memory import first_inside


def network(processes: list[psutil.Process]) -> Path | None:
    """Return the kernel's folder about the box's network; None while it still has ours, or is gone."""
    with suppress(OSError, IndexError):
        about = Path("/proc", str(first_inside(processes).pid))
        if os.stat(about / "ns" / "net").st_ino != os.stat("/proc/self/ns/net").st_ino:
            return about / "net"
    return None


def folders(processes: list[psutil.Process], size_bytes: int) -> Iterator[os.statvfs_result]:
    """Yield what the kernel says of the box's temporary folders, of `size_bytes` each, whose memory is no process's."""
    for folder in ("tmp", "dev/shm"):
        with suppress(OSError, IndexError):
            about = os.statvfs(Path("/proc", str(first_inside(processes).pid), "root", folder))
            if about.f_blocks * about.f_frsize == size_bytes:  # otherwise it is our folder: the box is not ready yet
                yield about
