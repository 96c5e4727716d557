"""What the kernel keeps for a box and charges no process for is limited: sockets, files, threads, locks, and others."""

import os
import subprocess
import time

import psutil
import pytest
from deadlines import deadline_s
from test_sandbox import SMALL, Python, bubblewrap

from grading.boxes.sandbox import Bubblewrap
from grading.boxes.sandbox.limit_watchdog import wait_until_dead
from grading.boxes.sandbox.open_files_epoll_locks import HIDING, kept

SOCKETS = (
    "import socket, time; kept = [socket.socketpair() for _ in range({})]; print('{{}}', flush=True); time.sleep(60)"
)
FILES = "import time\nfor i in range({}): open(f'/tmp/{{i}}', 'w').close()\nprint('{{}}', flush=True); time.sleep(60)"

RESTS = "\nimport time; print('{}', flush=True); time.sleep(60)"
THREADS = (  # whose stacks are one mapping
    "import ctypes\nc = ctypes.CDLL(None); c.mmap.restype = ctypes.c_void_p; N = 6000\n"
    "at = c.mmap(None, ctypes.c_size_t(N << 14), 3, 0x22, -1, ctypes.c_long(0))\n"
    "how = ctypes.create_string_buffer(64); c.pthread_attr_init(how); t = ctypes.c_ulong()\n"
    "for i in range(N):\n"
    " c.pthread_attr_setstack(how, ctypes.c_void_p(at + (i << 14)), ctypes.c_size_t(1 << 14))\n"
    " c.pthread_create(ctypes.byref(t), how, ctypes.cast(c.pause, ctypes.c_void_p), None)\n" + RESTS
)
WATCHED = (
    "import os, select\nfds = [fd for _ in range(500) for fd in os.pipe()]\n"
    "kept = [select.epoll() for _ in range(20)]\n"
    "for each in kept:\n for fd in fds: each.register(fd, 1)\n" + RESTS
)
LOCKS = (
    "import fcntl\nfile = open('/tmp/locked', 'w')\n"
    "for i in range(11_000): fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * i)\n" + RESTS
)
DESCRIPTORS = (
    "import os, time\nfirst = os.getpid()\nfor _ in range(4): os.fork()\nkept = []\ntry:\n"
    " while True: kept.append(os.pipe())\nexcept OSError: os.getpid() == first or time.sleep(60)\n" + RESTS
)
SENDS = "import os, socket\nfds = [os.open('/tmp', os.O_RDONLY)]\n"
IN_FLIGHT = SENDS + "a, b = socket.socketpair(); socket.send_fds(a, [b'x'], fds)\nos.close(*fds)\n" + RESTS
NOT_ACCEPTED = (  # sent to a connection that nobody has accepted, by a socket that is closed
    SENDS + "server = socket.socket(socket.AF_UNIX); server.bind('/tmp/s'); server.listen()\n"
    "with socket.socket(socket.AF_UNIX) as s:\n s.connect('/tmp/s')\n socket.send_fds(s, [b'x'], fds)\n"
    "os.close(*fds)\n" + RESTS
)
ENDS = "import ctypes, os, threading, time; call = ctypes.CDLL(None)\n"
NO_MAIN_THREAD = (
    ENDS + "os.fork() or (threading.Thread(target=time.sleep, args=(60,)).start(), call.syscall(60, 0))" + RESTS
)
FILES_OF_A_THREAD = (
    ENDS + "def own(): call.unshare(0x400); time.sleep(60)\nthreading.Thread(target=own).start()" + RESTS
)
TABLES = (  # of pages that were only looked at
    "import mmap\nm = mmap.mmap(-1, 400 << 30, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE | 0x4000)\n"
    "for at in range(0, len(m), 1 << 21): m[at]\n" + RESTS
)


@bubblewrap
@pytest.mark.parametrize(
    ("source", "words"),
    [
        (SOCKETS.format(600), "sockets, and may have 1,000"),
        (FILES.format(30_000), "files, and may have 20,000"),
        (THREADS, "threads, and may have 5,000"),
        (WATCHED, "files that epoll watches, and may have 10,000"),
        (LOCKS, "locks of files, and may have 10,000"),
        (DESCRIPTORS, "open files, and may have 50,000"),
        (TABLES, "of memory, and may hold 0.391 GiB"),
    ],
    ids=["sockets", "files", "threads", "epoll", "locks", "open files", "tables of pages"],
)
def test_what_the_kernel_keeps_for_a_box_is_limited(source, words):
    """A process is charged for none of it: 600 full pairs of sockets would hold 0.5 GiB."""
    program = Python(source, Bubblewrap(SMALL))
    try:
        with pytest.raises(RuntimeError, match=words):
            program.wait_until_ready(deadline_s(20))
            time.sleep(2)  # until the guard has looked
            program.send({}, deadline_s(20))
            program.receive()
    finally:
        program.close()


@bubblewrap
def test_who_hides_its_open_files_is_ended(monkeypatch):
    """As one that is not dumpable does from an ordinary user: memory in such files would be nobody's."""
    scandir = os.scandir

    def hidden(path="."):
        if str(path).startswith("/proc/") and str(path).endswith("/fd"):
            raise PermissionError(path)
        return scandir(path)

    program = Python(RESTS, Bubblewrap(SMALL))
    monkeypatch.setattr(os, "scandir", hidden)
    try:
        with pytest.raises(RuntimeError, match="it had processes that hide their open files for 1 s"):
            program.wait_until_ready(deadline_s(20))
            time.sleep(2)
            program.send({}, deadline_s(20))
            program.receive()
    finally:
        program.close()


@bubblewrap
@pytest.mark.parametrize("source", [NO_MAIN_THREAD, FILES_OF_A_THREAD], ids=["no main thread", "files of a thread"])
def test_files_that_only_another_thread_has_are_hidden(source):
    program = Python(source, Bubblewrap(SMALL))
    try:
        with pytest.raises(RuntimeError, match="it had processes that hide their open files for 1 s"):
            program.wait_until_ready(deadline_s(20))
            time.sleep(3)
            program.send({}, deadline_s(20))
            program.receive()
    finally:
        program.close()


def test_a_process_that_has_ended_hides_nothing(monkeypatch):
    """Its parent may not have asked for its exit status yet: then an ordinary user can't look into its folder."""

    def refuse(path):
        raise PermissionError(path)

    with subprocess.Popen(["true"]) as ended, subprocess.Popen(["sleep", "60"]) as lives:
        processes = psutil.Process(ended.pid), psutil.Process(lives.pid)
        wait_until_dead(processes[:1])
        monkeypatch.setattr(os, "scandir", refuse)
        assert [kept([process])[HIDING] for process in processes] == [0, 1]
        lives.kill()


@bubblewrap
@pytest.mark.parametrize("source", [IN_FLIGHT, NOT_ACCEPTED], ids=["in flight", "not accepted"])
@pytest.mark.parametrize("gpus", [True, False])
def test_files_are_in_flight_for_some_time_only_where_they_may_be_memory(source, gpus, monkeypatch, tmp_path):
    """As in a box with GPUs. In another one a rank that starts slowly may be sent files long before it takes them."""
    monkeypatch.setattr("grading.boxes.sandbox.limit_watchdog.LONGEST_IN_FLIGHT_S", 1.0)
    if gpus:
        (tmp_path / "nvidia0").touch()
    program = Python(source, Bubblewrap(SMALL, dev=tmp_path))
    try:
        program.wait_until_ready(deadline_s(20))
        time.sleep(2.5)
        assert program._guard.exceeded == ("it had files in flight for 1 s" if gpus else "")
    finally:
        program.close()


@bubblewrap
def test_fewer_sockets_and_files_are_no_offence():
    for source in (SOCKETS.format(400), FILES.format(15_000)):
        program = Python(source, Bubblewrap(SMALL))
        try:
            program.wait_until_ready(deadline_s(20))
            time.sleep(1.5)
            assert not program._guard.exceeded
        finally:
            program.close()
