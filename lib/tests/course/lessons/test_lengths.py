"""How long a lesson is: each limit is seen to be passed, and the minutes that it states are its own."""

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from shardcourse.lessons.cells import as_python
from shardcourse.lessons.lengths import LIMITS, length_problems, lengths

FIRST = "# 5a. A lesson\n\n**A question?**\n\nAbout {} minutes."


def lesson(words: int = 0, lines: int = 0, cell: str = "", prose: str = "") -> "list[str]":
    """The problems of a lesson that says its own minutes."""
    cells = [new_markdown_cell(FIRST.format(0)), new_markdown_cell("word " * words + prose), new_code_cell(cell)]
    cells += [new_code_cell("x = 1\n# a comment\n\n" * 10) for _ in range(lines // 10)]
    nb = new_notebook(cells=cells)
    nb.cells[0].source = FIRST.format(lengths(nb)["minutes"])
    return length_problems(nb)


NAMES = ", ".join(f"n{i}" for i in range(13))
TOO_LONG = {
    "minutes": {"words": 1950, "lines": 200, "prose": "### Exercise 1: write it (12 min)"},
    "words": {"words": 2000},
    "lines of code": {"lines": 230},
    "lines in the longest cell": {"cell": "x = 1\n" * 25},
    "names from the library": {"cell": f"from shardlab.model import {NAMES}"},
    "long brackets": {"prose": "(a bracket of twenty-five letters and more) " * 7},
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_lesson_that_is_too_long_is_found(name):
    (problem,) = lesson(**TOO_LONG[name])
    assert f" {name}: at most {LIMITS[name]}" in problem


def test_a_lesson_at_its_limits_is_fine():
    cell = f"%load_ext shardlab\nfrom shardlab.model import {NAMES[4:]}\nfrom torch import nn\n" + "# why\n" * 30
    assert lesson(words=1940, lines=210, cell=cell, prose="(a bracket of twenty-five letters and more) " * 6) == []


def test_the_minutes_are_those_of_the_lesson():
    nb = new_notebook(cells=[new_markdown_cell(FIRST.format(3) + " word" * 250), new_code_cell("x = 1")])
    assert length_problems(nb) == ["the first cell does not say 'About 2 minutes'"]


def test_the_body_of_a_cell_for_live_ranks_is_python():
    assert as_python("%%ranks 0,2-3 --wire\nx = 1\n%ranks\n!ls\ny = x % 2") == "\nx = 1\n\n\ny = x % 2"
