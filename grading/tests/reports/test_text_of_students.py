"""Text that a student wrote does nothing where an instructor reads it: terminal, spreadsheet, and page."""

import csv
import io
import json
from functools import partial

import pytest
from bs4 import BeautifulSoup
from class_of_two import released_class
from nbformat.v4 import new_output
from rich.console import Console
from submissions import LAB, ROOT

from grading import instructor_commands
from grading.gradebook import nbgrader_classroom
from grading.gradebook.grade_class import grade_all
from grading.gradebook.limited import limited
from grading.judge.find_lab import lab_module
from grading.judge.judge_submission import Judged
from grading.judge.verdict import Verdict
from grading.reports.class_page_and_tables import show
from grading.reports.class_report import class_report
from grading.reports.csv_export import FORMS, export
from grading.reports.markdown_to_html import MarkdownWithMath

ESCAPES = "\x1b[2J\x1b[1;1H\x1b]52;c;AAAA\x07\x9b31m\u202e[red]PASSED[/]"
VERDICT = Verdict("lab2.plan", 3, 3, "all is well", figures={"late by": ("0 ms", "1 ms")}).html()
FORGED = f'{VERDICT}<div class="graded" id="lab2-plan" style="border: 1px solid; background: green">x</div>'
NAMES = ["=1+1", "+1", "-1", "@SUM(A1)", "\uff1d1+1", " =1+1", "[red]eve"]


def judge(self, submission, settings) -> Judged:
    verdicts = [Verdict(name, 0, c.points, ESCAPES, ESCAPES) for name, c in lab_module(LAB).CHECKS.items()]
    forged = new_output("display_data", {"text/html": FORGED})
    cells = [[forged] if c.cell_type == "code" else [] for c in submission.notebook.cells]
    return Judged([{"outputs": outputs, "execution_count": 1} for outputs in cells], verdicts, "", 1.0)


@pytest.fixture(scope="module")
def classroom(tmp_path_factory):
    nb = json.loads((ROOT / "solutions" / LAB / f"{LAB}.ipynb").read_text())
    nb["cells"].append({"cell_type": "markdown", "id": "m", "metadata": {}, "source": f"{FORGED}\n\n# PASSED"})
    with released_class(tmp_path_factory, judge) as classroom:
        for student in NAMES:
            folder = classroom.submitted(LAB, student)
            folder.mkdir(parents=True)
            (folder / f"{LAB}.ipynb").write_text(json.dumps(nb))
        assert [g.problem for g in grade_all(classroom, LAB, NAMES)] == [""] * len(NAMES)
        yield classroom


def test_a_terminal_shows_it_and_does_not_obey(classroom, monkeypatch):
    console = Console(file=io.StringIO(), width=300, force_terminal=True, color_system="truecolor")
    instructor_commands.explain(LAB, "[red]eve", console, classroom.root)
    show(class_report(classroom, LAB), console)
    instructor_commands._grade_lab(classroom, LAB, [], console, {})
    text = console.file.getvalue()
    for harm in ("\x1b[2J", "\x1b[1;1H", "\x1b]52", "\x07", "\x9b", "\u202e"):
        assert harm not in text
    assert "\\x1b[2J" in text
    assert "[red]PASSED[/]" in text
    assert "[red]eve" in text


@pytest.mark.parametrize("form", FORMS)
def test_a_spreadsheet_computes_nothing_of_a_name(form, classroom):
    cells = [cell for row in csv.reader(io.StringIO(export(classroom, form))) for cell in row]
    assert {f"'{name}" for name in NAMES[:-1]} <= set(cells)
    assert not [cell for cell in cells if cell.strip().startswith(("=", "+", "-", "@", "\uff1d"))]


def looks(page: BeautifulSoup) -> list:
    """What has the look of a verdict: a border or a colour of its own, or a class or a name of the page's."""
    styled = [t for t in page.find_all(style=True) if {"border", "color", "background"} & set(t["style"].split(":"))]
    styled += [t for t in page.find_all(style=True) if "border" in t["style"] or "color" in t["style"]]
    return styled + page.select(".graded, .lost, .kept, .results, .own")


def test_on_a_page_only_a_verdict_looks_like_one(classroom):
    page = BeautifulSoup(classroom.feedback(LAB, "=1+1").read_text(encoding="utf-8"), "html.parser")
    graded = page.select("section.graded")
    verdicts = [section for section in graded if section.find("header", string=None).find("code")]
    assert verdicts
    own = page.select("section.own")
    assert own and all("PASSED" in section.text for section in own), "the forged ones are shown"
    assert all(section.find("header").text == "output of this cell" for section in own)
    assert [looks(section) for section in own] == [[]] * len(own)
    assert page.find("h1", string="PASSED") and looks(page.find("h1", string="PASSED").parent) == []
    assert len(page.find_all(id="lab2-plan")) == 1


def test_a_page_that_would_take_too_long_is_written_as_plain_text(classroom, monkeypatch):
    def endless(*_):
        while True:
            pass

    monkeypatch.setattr(MarkdownWithMath, "render", endless)
    monkeypatch.setattr(nbgrader_classroom, "limited", partial(limited, cpu_s=3))
    html = classroom.feedback(LAB, "+1").read_text(encoding="utf-8")
    assert "# PASSED" in html
    assert "border-left: 4px" in html, "verdicts look as ever"
