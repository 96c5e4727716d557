"""labs/README.md says of every lab what its notebook says: title, lessons, hours, points."""

import re

import pytest
from submissions import LABS, ROOT

from grading.gradebook.manually_graded_cells import is_written
from grading.judge.find_lab import lab_module
from grading.samples.sample import read_lab

ROW = re.compile(r"\| (\d+) \| \[(.+)\]\((.+)\) \| .+ \| ([\d, ]+) \| (\d+) \| ([\d.]+) \+ (\d) \|")
ROWS = {row[3]: row for row in ROW.finditer((ROOT / "labs" / "README.md").read_text(encoding="utf-8"))}


@pytest.mark.parametrize("lab", LABS)
def test_a_labs_row_says_what_the_lab_says(lab):
    row = ROWS[f"{lab}/{lab}.ipynb"]
    title, about = re.match(r"# (.+)\n\n(About .+?)\n\n", read_lab("labs", lab).cells[0].source, flags=re.S).groups()
    assert title == f"Lab {row[1]}: {row[2]}"
    assert f"About {row[5]} hours." in about
    assert f"{row[6]} points are graded automatically, and {row[7]} by hand." in about
    assert float(row[6]) == sum(check.points for check in lab_module(lab).CHECKS.values())
    (argument,) = filter(is_written, read_lab("labs", lab).cells)
    assert argument.metadata.nbgrader.points == int(row[7])
    lessons = re.findall(r"\d+", about.split("hours.")[1].split(f"{row[6]} points")[0])
    assert set(re.findall(r"\d+", row[4])) <= set(lessons)


def test_every_lab_has_a_row_and_every_row_a_lab():
    assert sorted(ROWS) == [f"{lab}/{lab}.ipynb" for lab in LABS]
