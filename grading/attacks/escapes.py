"""Attacks that leave the box: to other processes, the network, the system, the next submission."""

from grading.attacks.attack import of_answer, of_notebook

DAEMON = "sleep 86399"  # what these attacks leave running


def leaves_a_daemon():
    """Start a daemon with two forks, its own session and all signals ignored, so that it would outlast the grading."""
    import os
    import signal

    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_IGN)
            os.execvp("sleep", ["sleep", "86399"])
        os._exit(0)


def leaves_a_daemon_on_the_rank(sizes_bytes, ready_s, world_size, latency_s, bandwidth_bytes_per_s):
    import os

    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "86399"])
        os._exit(0)
    return [1] * len(sizes_bytes)


def kills_whatever_it_can():
    import os
    import signal

    os.kill(-1, signal.SIGKILL)


def kills_whatever_it_can_on_the_rank(sizes_bytes, ready_s, world_size, latency_s, bandwidth_bytes_per_s):
    import os
    import signal
    from contextlib import suppress

    for pid in range(1, 1 << 16):
        if pid != os.getpid():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    return [1] * len(sizes_bytes)


def writes_where_it_does_not_belong():
    """Write into the course, into Python's packages, into start-up files."""
    import site
    import sys
    from pathlib import Path

    import grading
    import shardlab

    course = Path(grading.__file__).parents[1]
    folders = [course, course / "solutions", course / "grading", Path(shardlab.__file__).parent, Path.home()]
    folders += [Path(p) for p in (sys.prefix, *site.getsitepackages(), "/etc", "/usr/local/bin", "/var/tmp")]
    for folder in folders:
        if not str(folder).startswith("/tmp"):
            try:
                (folder / "sitecustomize.py").write_text("print('mine')")
                print("GOT into", folder)
            except OSError:
                pass
    for path in (Path(grading.__file__), Path(shardlab.__file__)):
        try:
            with open(path, "a"):
                print("GOT to change", path)
        except OSError:
            pass


def becomes_somebody_else():
    import ctypes
    import os

    libc = ctypes.CDLL(None, use_errno=True)
    new_user, new_mounts = 0x10000000, 0x00020000
    if libc.unshare(new_user) == 0:
        print("GOT a user namespace")
    if libc.unshare(new_mounts) == 0:
        print("GOT a mount namespace")
    if libc.mount(b"proc", b"/tmp", b"proc", 0, None) == 0:
        print("GOT a mount")
    for what in (lambda: os.setuid(12345), lambda: os.chroot("/tmp"), lambda: os.sethostname("mine")):
        try:
            what()
            print("GOT another identity")
        except OSError:
            pass


def changes_the_kernels_settings():
    for name in (
        "sys/kernel/core_pattern",
        "sys/vm/drop_caches",
        "sysrq-trigger",
        "sys/kernel/hostname",
        "1/oom_score",
    ):
        try:
            with open(f"/proc/{name}", "a"):
                print("GOT", name)
        except OSError:
            pass


def scans_the_loopback():
    """Look for a gradebook's server, a Jupyter without a password, another submission's rendezvous."""
    import socket

    import psutil

    own = {c.laddr.port for c in psutil.Process().net_connections()}  # ipykernel talks to itself through one
    for port in {*range(1024, 12_000), *range(29_000, 30_000), *range(40_000, 45_000)} - own:
        with socket.socket() as s:
            s.settimeout(0.05)
            if s.connect_ex(("127.0.0.1", port)) == 0 and s.getsockname() != s.getpeername():  # not itself
                print("GOT a service on port", port)


def calls_home():
    import socket

    for address in (("1.1.1.1", 53), ("8.8.8.8", 53), ("169.254.169.254", 80)):
        with socket.socket() as s:
            s.settimeout(2)
            if s.connect_ex(address) == 0:
                print("GOT out to", address)


def connects_to_sockets_of_the_grader():
    import socket
    from pathlib import Path

    for root in ("/tmp", "/run", "/var/run"):
        for path in Path(root).rglob("*"):
            if path.is_socket() and "shardlab-shared" in str(path):
                with socket.socket(socket.AF_UNIX) as s:
                    s.settimeout(1)
                    if s.connect_ex(str(path)) == 0:
                        print("GOT a connection to", path)


def steers_the_terminal():
    """Put input into the terminal, as if the next person who uses it had typed it."""
    import fcntl
    import os
    import termios

    for fd in (0, 1, 2):
        try:
            fcntl.ioctl(fd, termios.TIOCSTI, b"x")
            print("GOT the terminal")
        except OSError:
            pass
    try:
        with open("/dev/tty", "w"):
            print("GOT a terminal")
    except OSError:
        pass
    os.environ.pop("TERM", None)


ATTACKS = [
    *of_notebook(
        leaves_a_daemon,
        kills_whatever_it_can,
        writes_where_it_does_not_belong,
        becomes_somebody_else,
        changes_the_kernels_settings,
        scans_the_loopback,
        calls_home,
        connects_to_sockets_of_the_grader,
        steers_the_terminal,
    ),
    *of_answer(leaves_a_daemon_on_the_rank, kills_whatever_it_can_on_the_rank),
]
