"""Limits on what one box may use of this machine."""

import resource
import shutil
from dataclasses import dataclass

import psutil

FIRST_TO_GO = 1000  # the highest oom_score_adj, proc(5)


@dataclass(frozen=True)
class Limits:
    """Limits of one box. `limit_watchdog` enforces all but `file_bytes` and `open_files`, for the whole box."""

    memory_bytes: int
    processes: int = 200
    scratch_bytes: int = 2 << 30  # for temporary files, and the same for shared memory; both are held in memory
    file_bytes: int = 1 << 30  # of the largest file
    sockets: int = 1000  # eight ranks in five groups have some 300
    files: int = 20_000
    open_files: int = 4096  # of one process
    descriptors: int = 50_000  # open files of all processes together
    threads: int = 5000  # the kernel keeps 24 KiB for each, and many machines have room for 32,768
    user_threads: int = 20_000  # of this user: the kernel's own limit, which holds until the next look at a box
    watched: int = 10_000  # files that epoll watches, and as many locks of files

    @classmethod
    def of_this_machine(cls, at_a_time: int = 1) -> "Limits":
        """Return limits of half the memory, split between the boxes; the grader and the reference get the rest."""
        return cls(memory_bytes=psutil.virtual_memory().total // 2 // at_a_time)

    @property
    def _open_files(self) -> int:
        """Return the limit on open files: no more than this process may allow."""
        return min(self.open_files, resource.getrlimit(resource.RLIMIT_NOFILE)[1])

    @property
    def _user_threads(self) -> int:
        hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        return self.user_threads if hard == resource.RLIM_INFINITY else min(self.user_threads, hard)

    def command(self, program: list[str]) -> list[str]:
        """Return `program` with the kernel's limits. If memory runs out after all, it is the first to be killed."""
        first_to_go = ["choom", "-n", str(FIRST_TO_GO), "--"] if shutil.which("choom") else []
        kernels = [f"--fsize={self.file_bytes}", f"--nofile={self._open_files}", "--core=0"]
        kernels += [f"--nproc={self._user_threads}"]
        limited = ["prlimit", *kernels, "--"] if shutil.which("prlimit") else []
        return [*first_to_go, *limited, *program]
