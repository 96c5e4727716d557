"""Count bytes in pipes and sockets that nobody has read yet: memory that no process is charged for."""

import array
import ctypes
import errno
import fcntl
import os
import socket
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

_PIDFD_GETFD = 438  # Linux, pidfd_getfd(2): the same number on all architectures
_libc = ctypes.CDLL(None, use_errno=True)


def buffered_bytes(processes: list[psutil.Process], *, network: bool) -> int:
    """Return the bytes in pipes and in sockets between processes of a machine; with `network`, in TCP's, too.

    What is on its way over the network is no hidden memory: count it only when nothing should be sent.
    """
    found: dict[str, int] = {}
    for process in processes:
        with suppress(OSError):
            for name, fd in _pipes_and_sockets(process.pid):
                if name not in found:
                    with suppress(OSError), _copy(process.pid, fd) as ours:
                        found[name] = _waiting(ours, network) if name.startswith("socket:") else _ioctl(ours)
    return sum(found.values())


def _pipes_and_sockets(pid: int) -> Iterator[tuple[str, int]]:
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            name = os.readlink(entry.path)
            if name.startswith(("pipe:", "socket:")):
                yield name, int(entry.name)


@contextmanager
def _copy(pid: int, fd: int) -> Iterator[int]:
    """Open what another process has open."""
    process = os.pidfd_open(pid)
    try:
        ours = _libc.syscall(_PIDFD_GETFD, process, fd, 0)
    finally:
        os.close(process)
    if ours < 0:
        raise OSError(ctypes.get_errno() or errno.EPERM, "pidfd_getfd")
    try:
        yield ours
    finally:
        os.close(ours)


def _waiting(fd: int, network: bool) -> int:
    with socket.socket(fileno=os.dup(fd)) as s:
        if s.family == socket.AF_UNIX:
            return _ioctl(fd)
        return _ioctl(fd) + _ioctl(fd, termios.TIOCOUTQ) if network else 0


def _ioctl(fd: int, what: int = termios.FIONREAD) -> int:
    n = array.array("i", [0])
    fcntl.ioctl(fd, what, n)
    return n[0]
