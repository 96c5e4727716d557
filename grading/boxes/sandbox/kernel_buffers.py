"""Count bytes in pipes and sockets that nobody has read yet: memory that no process is charged for.

What is in a box's TCP and UDP sockets, its network's own tables tell, those of connections included that nobody has
accepted and that are in no process's list. Of datagrams on one machine the kernel tells only how long the next one is.
Source: Linux, proc_net(5), unix(7) and max_dgram_qlen, SO_MEMINFO in net/core/sock.c.
"""

import array
import ctypes
import errno
import fcntl
import os
import socket
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from grading.boxes.sandbox import locate_network_and_tmpfs
from grading.boxes.sandbox.process_tree_memory import open_files

_PIDFD_GETFD = 438  # Linux, pidfd_getfd(2): the same number on all architectures
_INTERNET = (socket.AF_INET, socket.AF_INET6)
_SO_MEMINFO = 55  # 32-bit numbers: received, its limit, sent, and others
_USUAL_BUFFER = 212_992  # bytes of a socket: a box can't have more (`refused_calls`)
_MOST_DATAGRAMS = 11  # that wait in a socket of this machine: the kernel's usual 10, and one
_libc = ctypes.CDLL(None, use_errno=True)


def buffered_bytes(processes: list[psutil.Process]) -> tuple[int, int]:
    """Return the bytes in pipes and in sockets between processes of a machine, and those in TCP's sockets.

    What is on its way over the network is no hidden memory: count the second only when nothing should be sent.
    """
    local: dict[str, int] = {}
    network: dict[str, int] = {}
    about = locate_network_and_tmpfs.network(processes)
    for process in processes:
        for name, fd in _pipes_and_sockets(process.pid):
            if name not in local and name not in network:
                with suppress(OSError), _copy(process.pid, fd) as ours:
                    if name.startswith("pipe:"):
                        local[name] = _ioctl(ours)
                    else:
                        with socket.socket(fileno=os.dup(ours)) as s:
                            kind = network if _is_of_tcp(s) else local
                            kind[name] = 0 if about and s.family in _INTERNET else _in_socket(s)
    if about:
        network["tcp"] = sum(_queued(about / name) for name in ("tcp", "tcp6"))
        local["udp"] = sum(_queued(about / name) for name in ("udp", "udp6", "udplite", "udplite6", "icmp", "icmp6"))
        local["not accepted"] = _not_accepted(about / "unix") * _USUAL_BUFFER
    return sum(local.values()), sum(network.values())


def _in_socket(s: socket.socket) -> int:
    if _is_of_tcp(s):
        return _ioctl(s.fileno()) + _ioctl(s.fileno(), termios.TIOCOUTQ)
    if s.family == socket.AF_UNIX:
        n_next = _ioctl(s.fileno())
        return max(n_next, _MOST_DATAGRAMS * _USUAL_BUFFER) if n_next and s.type == socket.SOCK_DGRAM else n_next
    received, _, sent, *_ = array.array("I", s.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 36))
    return received + sent


def _is_of_tcp(s: socket.socket) -> bool:
    return s.family in _INTERNET and s.type == socket.SOCK_STREAM


def _queued(table: Path) -> int:
    """Return the bytes to send and to read in all sockets of a table such as /proc/net/tcp."""
    total = 0
    with suppress(OSError):
        for line in table.read_text().splitlines()[1:]:
            total += sum(int(n, 16) for n in line.split()[4].split(":"))  # tx_queue:rx_queue
    return total


def _not_accepted(table: Path) -> int:
    """Return the connections to a listening socket of this machine that no process has accepted: without an inode."""
    with suppress(OSError):
        return sum(line.split()[6:7] == ["0"] for line in table.read_text(errors="replace").splitlines()[1:])
    return 0


def _pipes_and_sockets(pid: int) -> Iterator[tuple[str, int]]:
    for path in open_files(pid):
        with suppress(OSError):
            name = os.readlink(path)
            if name.startswith(("pipe:", "socket:")):
                yield name, int(os.path.basename(path))


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


def _ioctl(fd: int, what: int = termios.FIONREAD) -> int:
    n = array.array("i", [0])
    fcntl.ioctl(fd, what, n)
    return n[0]
