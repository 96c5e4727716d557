"""The weaker box: plain processes, which see what the grader sees."""

from pathlib import Path

from grading.boxes.sandbox.limits import Limits


class Processes:
    """A box without isolation. `limits` None: a person's own code on their own machine, which would run anyway."""

    ends_with_us = False
    own_namespaces = False
    memory_files = True  # may be made by memfd_create

    def __init__(self, limits: Limits | None, obstacle: str = "") -> None:
        self.limits = limits
        self.name = f"plain processes, which can read and write what you can ({obstacle or 'as it was asked for'})"

    def command(self, program: list[str], readable: tuple[Path, ...] = (), modules: tuple[str, ...] = ()) -> list[str]:
        return program if self.limits is None else self.limits.command(program)

    def home(self, folder: str) -> str:
        """Return the working folder, as a program started in `folder` sees it."""
        return folder
