"""What came of executing one notebook."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    notebook: str
    seconds: float
    cells: int  # that were executed
    slowest_cell_s: float
    problems: list[str]
    digest: str = ""  # of what decides how it runs: lessons.changed
