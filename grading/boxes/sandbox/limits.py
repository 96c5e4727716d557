"""How much one box may use of this machine."""

import shutil
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Limits:
    """`memory_bytes` and `processes` hold for all of a box together, and `guard` sees to them."""

    memory_bytes: int
    processes: int = 200
    scratch_bytes: int = 2 << 30  # of temporary files, and of shared memory; both lie in memory
    file_bytes: int = 1 << 30  # of one file

    @classmethod
    def of_this_machine(cls, at_a_time: int = 1) -> "Limits":
        """Half of the memory, shared by as many as are judged at a time; the grader and the reference have the rest."""
        return cls(memory_bytes=psutil.virtual_memory().total // 2 // at_a_time)

    def command(self, program: list[str]) -> list[str]:
        """`program` with what the kernel limits by itself; and, if memory runs out after all, the first to go."""
        first_to_go = ["choom", "-n", "1000", "--"] if shutil.which("choom") else []
        limited = ["prlimit", f"--fsize={self.file_bytes}", "--core=0", "--"] if shutil.which("prlimit") else []
        return [*first_to_go, *limited, *program]
