"""The lesser box: plain processes. They see what the grader sees."""

from pathlib import Path

from grading.boxes.sandbox.limits import Limits


class Processes:
    """`limits` None: a person's own code on their own machine, as it would run anyway."""

    ends_with_us = False
    own_world = False

    def __init__(self, limits: Limits | None, obstacle: str = "") -> None:
        self.limits = limits
        self.name = f"plain processes, which can read and write what you can ({obstacle or 'as it was asked for'})"

    def command(self, program: list[str], readable: tuple[Path, ...] = ()) -> list[str]:
        return program if self.limits is None else self.limits.command(program)

    def home(self, folder: str) -> str:
        """Where a program finds itself that was started in `folder`."""
        return folder
