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

    @classmethod
    def of_this_machine(cls, at_a_time: int = 1) -> "Limits":
        """Return limits of half the memory, split between the boxes; the grader and the reference get the rest."""
        return cls(memory_bytes=psutil.virtual_memory().total // 2 // at_a_time)

    @property
    def _open_files(self) -> int:
        """Return the limit on open files: no more than this process may allow."""
        return min(self.open_files, resource.getrlimit(resource.RLIMIT_NOFILE)[1])

    def command(self, program: list[str]) -> list[str]:
        """Return `program` with the kernel's limits. If memory runs out after all, it is the first to be killed."""
        first_to_go = ["choom", "-n", str(FIRST_TO_GO), "--"] if shutil.which("choom") else []
        kernels = [f"--fsize={self.file_bytes}", f"--nofile={self._open_files}", "--core=0"]
        limited = ["prlimit", *kernels, "--"] if shutil.which("prlimit") else []
        return [*first_to_go, *limited, *program]
