"""The outcome of executing one notebook."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    notebook: str
    seconds: float
    cells: int  # the number of executed cells
    slowest_cell_s: float
    problems: list[str]
    digest: str = ""  # of everything that decides how the notebook runs: see lessons.changed
