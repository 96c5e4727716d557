"""Count what a box makes the kernel keep for it, and what no process is charged for: sockets, and files' entries.

A socket's buffers hold what was sent and not yet received, 0.2 to 0.4 MiB each, and an empty file some 0.8 KiB. Both
are counted in the box's own network and folders, so there is nothing to count in a box without.
"""

from contextlib import suppress

import psutil

from grading.boxes.sandbox import locate_network_and_tmpfs


def sockets(processes: list[psutil.Process]) -> int:
    """Return the sockets in the box's network."""
    if about := locate_network_and_tmpfs.network(processes):
        with suppress(OSError, IndexError, ValueError):
            return int((about / "sockstat").read_text().split()[2])  # sockets: used N
    return 0


def files(processes: list[psutil.Process], scratch_bytes: int) -> int:
    """Return the files and folders in the box's temporary folders, of `scratch_bytes` each."""
    return sum(about.f_files - about.f_ffree for about in locate_network_and_tmpfs.folders(processes, scratch_bytes))
