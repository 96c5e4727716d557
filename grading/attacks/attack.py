"""One attack: the notebook and the files that are handed in."""

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nbformat

from grading.samples.sample import read_lab, samples

LAB, CELL, CHECK = "lab2_ddp", "plan_buckets", "lab2.plan"
WRAPPER = "token_ddp"  # the cell with TokenDDP


def worthless(sizes_bytes, ready_s, world_size, latency_s, bandwidth_bytes_per_s):
    """Return a valid but bad plan, which gets no points."""
    return [1] * len(sizes_bytes)


@dataclass(frozen=True)
class Attack:
    """An attack: `in_notebook` is called in the notebook, `answer` is handed in, `spoil` changes the folder."""

    name: str
    in_notebook: Callable | None = None
    answer: Callable = worthless
    spoil: Callable[[Path], None] = lambda folder: None
    wants: tuple[str, ...] = ()  # checks whose points it wants; (): any

    def notebook(self) -> nbformat.NotebookNode:
        nb = read_lab("labs", LAB)
        cell = next(cell for cell in nb.cells if cell.metadata.nbgrader.grade_id == CELL)
        cell.source = _source(self.answer)
        if self.answer.__name__ != CELL:
            cell.source += f"\n\n{CELL} = {self.answer.__name__}\n"
        if self.in_notebook:
            cell.source += f"\n\n{_source(self.in_notebook)}\n\n{self.in_notebook.__name__}()\n"
        return nb

    def hand_in(self, folder: Path) -> None:
        nbformat.write(self.notebook(), folder / f"{LAB}.ipynb")
        self.spoil(folder)


@dataclass(frozen=True)
class Deceit(Attack):
    """The sample `of`, which calls `answer` first on each rank, to get points for the checks `wants` undeservedly."""

    of: str = "right"

    def notebook(self) -> nbformat.NotebookNode:
        nb = next(s for s in samples(LAB) if s.name == self.of).notebook()
        cell = next(cell for cell in nb.cells if cell.metadata.nbgrader.grade_id == WRAPPER)
        cell.source += f"\n\n{_source(self.answer)}\n\n"
        cell.source += f"""class TokenDDP(TokenDDP):
    def __init__(self, module, bucket_cap_mb):
        {self.answer.__name__}()
        super().__init__(module, bucket_cap_mb)
"""
        return nb


def of_notebook(*functions: Callable) -> list[Attack]:
    return [Attack(f.__name__, in_notebook=f) for f in functions]


def of_answer(*functions: Callable) -> list[Attack]:
    return [Attack(f.__name__, answer=f) for f in functions]


def of_folder(*functions: Callable[[Path], None]) -> list[Attack]:
    return [Attack(f.__name__, spoil=f) for f in functions]


def of_rank(of: str, wants: str, *functions: Callable) -> list[Attack]:
    return [Deceit(f.__name__, answer=f, of=of, wants=(wants,)) for f in functions]


def _source(function: Callable) -> str:
    return textwrap.dedent(inspect.getsource(function))
