"""The real box, made by bubblewrap: its own processes, its own loopback and no other network, few files.

Inside, all read-only: the system's programs and libraries, this Python and its packages, `lib`, and the files of
`grading` that the program in the box imports (`imported_grading_files`). Not inside: judges and answers of ours, other
submissions, solutions, samples, the gradebook, the grader's own files, its environment and its processes. /tmp and
/dev/shm are empty memory of a limited size, freed with the box.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

from grading.boxes.sandbox import gpu_access, refused_calls
from grading.boxes.sandbox.imported_grading_files import files_of
from grading.boxes.sandbox.limits import Limits
from grading.boxes.sandbox.process_tree_memory import family, first_inside

# Of lib/: what students have at home.
_SHOWN = ("shardlab", "shardtrace", "shardnext", "shardsim", "shardlive", "shardplan", "shardcourse", "benchmarks")
_ROOT = Path(__file__).resolve().parents[3]
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_SETTINGS = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "nsswitch.conf", "fonts")
_KERNEL = ("sys", "sysrq-trigger", "fs", "irq", "bus", "acpi", "scsi")  # of /proc: root's even without capabilities
_OF_THE_USER = ("keys", "key-users")  # of /proc: names of keys, which no namespace divides
_HOME = "/tmp"
_NS_GET_USERNS = 0xB701  # ioctl_ns(2): the user namespace that owns a namespace


class Bubblewrap:
    name = "bubblewrap"
    ends_with_us = True  # it ends with us, however we end, so it is safe to freeze it
    own_namespaces = True  # a network and temporary files that nobody else uses

    def __init__(self, limits: Limits, dev: Path = gpu_access.DEV) -> None:
        self.limits, self._dev = limits, dev

    def command(self, program: list[str], readable: tuple[Path, ...] = (), modules: tuple[str, ...] = ()) -> list[str]:
        """Return the command that runs `program` in a box. It may read the `readable` folders, and import `modules`.

        `modules` are of `grading`; what they import from it is there as well, and no other file of it.

        Raises OSError if the GPUs' files can't be listed.
        """
        size = str(self.limits.scratch_bytes)
        box = ["bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"]
        box += ["--cap-drop", "ALL", "--proc", "/proc", "--dev", "/dev"]
        box += ["--size", size, "--tmpfs", "/dev/shm", "--size", size, "--tmpfs", _HOME]
        for path in (*_readable(), *files_of(*modules)):
            box += _shown(path)
        for path in (*(Path("/proc", name) for name in _KERNEL if Path("/proc", name).exists()), *readable):
            box += ["--ro-bind", str(path), str(path)]
        for name in _OF_THE_USER:
            box += ["--ro-bind", os.devnull, f"/proc/{name}"] if Path("/proc", name).exists() else []
        box += [*_gpus(self._dev), "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", _HOME]
        return refused_calls.opened(self.limits.command([*box, *refused_calls.options(), "--", *program]))

    def home(self, folder: str) -> str:
        return _HOME

    @staticmethod
    def stop_all(pid: int, timeout_s: float) -> None:
        """Send SIGSTOP at once to everything in the box that `pid` made, by kill(-1) from inside the box.

        The kernel orders each fork either before or after such a signal, so no process escapes. Raises TimeoutExpired:
        a process in the box may stop the program that would stop it.
        """
        with suppress(IndexError, OSError), ExitStack() as stack:  # the box is not there yet, or no longer
            processes = os.open(f"/proc/{first_inside(family(pid)).pid}/ns/pid", os.O_RDONLY)
            stack.callback(os.close, processes)
            users = fcntl.ioctl(processes, _NS_GET_USERNS)
            stack.callback(os.close, users)
            enter = ["nsenter", f"--user=/proc/self/fd/{users}", f"--pid=/proc/self/fd/{processes}"]
            command = [*enter, "--preserve-credentials", "--", "kill", "-STOP", "--", "-1"]
            nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            subprocess.run(command, pass_fds=(users, processes), timeout=timeout_s, check=False, **nowhere)

    @staticmethod
    @cache
    def obstacle() -> str:
        """Return why this machine can't make such a box; empty if it can."""
        if shutil.which("bwrap") is None:
            return "bubblewrap is not installed"
        if shutil.which("nsenter") is None:
            return "nsenter, of util-linux, is not installed: what is in a box could not be held still at once"
        try:
            command = Bubblewrap(Limits(memory_bytes=0)).command(["true"])
        except OSError as error:
            return f"bubblewrap does not work here: {error}"
        trial = subprocess.run(command, capture_output=True, text=True, check=False)
        return f"bubblewrap does not work here: {trial.stderr.strip()[-200:]}" if trial.returncode else ""


@cache
def _readable() -> list[Path]:
    python = [Path(p) for p in (sys.base_prefix, sys.prefix) if not p.startswith("/usr")]
    lib = [_ROOT / "lib" / name for name in _SHOWN]
    places = [*map(Path, _SYSTEM), *(Path("/etc", name) for name in _SETTINGS), *python, *lib]
    return [place for place in places if place.exists()]


def _shown(path: Path) -> list[str]:
    if path.is_symlink() and not path.readlink().is_absolute():  # /lib -> usr/lib
        return ["--symlink", str(path.readlink()), str(path)]
    return ["--ro-bind", str(path), str(path)]


def _gpus(dev: Path) -> list[str]:
    """Return options for the GPUs' files in `dev`, and for what a program needs beside them."""
    shown = gpu_access.devices(dev)
    options = [a for name in shown for a in ("--dev-bind", str(dev / name), f"/dev/{name}")]
    beside = [p for p in gpu_access.folders(_ROOT, private=(Path.home(), Path(_HOME))) if not _is_readable(p)]
    return [*options, *(a for p in (*gpu_access.wiring(shown), *beside) for a in ("--ro-bind", str(p), str(p)))]


def _is_readable(path: Path) -> bool:
    return any(place == path or place in path.parents for place in _readable())
