"""Make what only Linux has fail in every Python process that finds this folder on its PYTHONPATH, as on a Mac.

Files below /proc, /sys and /dev/shm are not there, functions that Python documents as "Availability: Linux" are
missing, the C library has no prctl, address space can't be limited, and bwrap, nsenter and ip are not installed.
Python's own modules and psutil keep what they use: on a Mac they have another way.
"""

import builtins
import ctypes
import io
import os
import resource
import select
import shutil
import signal
import socket
import sys

LINUX_ONLY = {
    os: """sched_getaffinity sched_setaffinity sched_setscheduler sched_getscheduler fdatasync posix_fallocate
        posix_fadvise memfd_create eventfd pidfd_open setns unshare copy_file_range splice getrandom
        setresuid getresuid O_DIRECT O_TMPFILE O_PATH O_NOATIME""",
    select: "epoll",
    signal: "sigtimedwait sigwaitinfo SIGRTMIN SIGPWR pidfd_send_signal",
    socket: "AF_NETLINK AF_VSOCK SO_PEERCRED",
    resource: "prlimit",
}
FOLDERS = ("/proc", "/sys", "/dev/shm")
PROGRAMS = {"bwrap", "nsenter", "ip", "unshare", "tc"}
MAY = ("/psutil/", "/multiprocessing/", "/lib/python3", "<frozen")  # Python's own library, and psutil's Linux half


def install() -> None:
    """Take away what Linux alone has."""
    for module, names in LINUX_ONLY.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    for module, names in {
        builtins: "open",
        io: "open",
        os: "open stat lstat listdir scandir readlink statvfs access",
    }.items():
        for name in names.split():
            setattr(module, name, _without_folders(getattr(module, name)))
    shutil.which = _without_programs(shutil.which)
    ctypes.CDLL = type("CDLL", (ctypes.CDLL,), {"__getattr__": _without_prctl(ctypes.CDLL.__getattr__)})
    resource.setrlimit = _without_address_space(resource.setrlimit)


def _without_folders(function):
    def called(path=".", *args, **options):
        if isinstance(path, (str, bytes, os.PathLike)):
            text = os.fsdecode(path)
            if any(text == f or text.startswith(f + "/") for f in FOLDERS) and _ours(sys._getframe(1)):
                raise FileNotFoundError(2, "No such file or directory (as on a Mac)", text)
        return function(path, *args, **options)

    return called


def _ours(frame) -> bool:
    """Return whether the first caller outside pathlib and os is ours, or a library that has no other way."""
    while frame and frame.f_code.co_filename.endswith(("/pathlib.py", "/os.py", "/shutil.py", "/genericpath.py")):
        frame = frame.f_back
    file = frame.f_code.co_filename if frame else ""
    return "site-packages" not in file and not any(part in file for part in MAY)


def _without_programs(which):
    return lambda cmd, *args, **options: None if cmd in PROGRAMS else which(cmd, *args, **options)


def _without_prctl(get):
    def called(self, name):
        if name == "prctl":
            raise AttributeError("dlsym(RTLD_DEFAULT, prctl): symbol not found")
        return get(self, name)

    return called


def _without_address_space(setrlimit):
    def called(which, limits):
        if which == resource.RLIMIT_AS:
            raise ValueError("current limit exceeds maximum limit")
        return setrlimit(which, limits)

    return called


install()
