"""course/questions.md answers every question that was put to the course, and each place it names is there.

questions.csv grades the course without that page, as a reader of the lessons and of the error messages finds an answer:
A within a minute, B hard to find or in passing, C not at all, W wrong; when the questions were first put (`first`), and
on the day the page was written (`today`).
"""

import csv
import re
from pathlib import Path

import nbformat

from shardcourse.lessons.cells import markdown
from shardcourse.repository import ROOT
from shardwhy.index import load

COURSE = ROOT / "course"
PAGE = (COURSE / "questions.md").read_text()
with Path(__file__).with_name("questions.csv").open(newline="") as file:
    ASKED = list(csv.DictReader(file))
PLACE = re.compile(r"\[(\d+[ab]?)(?:, (sections?|exercise) (\d+)(?: (?:and|to) (\d+))?)?\]\((\w+\.ipynb)\)")


def headings(lesson: str) -> str:
    return "\n".join(re.findall(r"^##+ .*$", markdown(nbformat.read(COURSE / lesson, as_version=4)), re.M))


def test_every_question_has_an_answer():
    threads = re.findall(r"\(\[thread\]\((\S+)\)\)", PAGE)
    assert len(threads) == len(set(threads)) and {row["thread"] for row in ASKED} <= set(threads)
    assert {row[grade] for row in ASKED for grade in ("first", "today")} <= set("ABCW")


def test_every_place_is_there():
    places = PLACE.findall(PAGE)
    assert len(places) == len(re.findall(r"\.ipynb\)", PAGE)), "a place is [3b, section 5](03b_ddp_in_practice.ipynb)"
    for number, kind, first, last, lesson in places:
        assert lesson.startswith(f"{int(number.rstrip('ab')):02d}{number.lstrip('0123456789')}"), lesson
        for n in filter(None, (first, last)):
            heading = rf"^### Exercise {n}: " if kind == "exercise" else rf"^## {n}\. "
            assert re.search(heading, headings(lesson), re.M), (lesson, kind, n)


def test_every_message_is_there():
    assert {name for name in re.findall(r"messages\.md#(\w+)\)", PAGE)} <= load().keys()


def test_every_answer_says_where_to_read():
    for answer in PAGE.split("\n- **")[1:]:
        assert re.search(r"\]\((\w+\.ipynb|messages\.md#\w+)\)", answer), answer
