"""course/README.md and SOURCES.md lead where they say: lessons are there, and sections that treat a source's topic."""

import re
from pathlib import Path

import nbformat
import pytest

from shardcourse.claims import claims
from shardcourse.lessons.cells import markdown
from shardcourse.lessons.lint import number_of
from shardcourse.repository import ROOT

COURSE = ROOT / "course"
TEXT = (COURSE / "README.md").read_text()
SOURCES = (COURSE / "SOURCES.md").read_text()
LESSONS = sorted(COURSE.glob("[0-9][0-9]*_*.ipynb"))
PLACE = re.compile(r"\[(\d+[ab]?)\]\((\w+\.ipynb)\) (.+)")


def topics(text: str) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """(page and section, [(lesson, file, heading)]) of each row."""
    rows = [line.split(" | ") for line in text.splitlines() if re.match(r"\| 00\d ", line)]
    places = [[PLACE.fullmatch(p) for p in row[2].removesuffix(" |").split("; ")] for row in rows]
    assert all(all(row) for row in places), "a place is a link to a lesson and the heading of a section"
    return [
        (row[0].removeprefix("| "), [(p[1], p[2], p[3]) for p in found])
        for row, found in zip(rows, places, strict=True)
    ]


def headings(path) -> set[str]:
    """Those of sections, without their numbers."""
    text = re.sub(r"```.*?```", "", markdown(nbformat.read(path, as_version=4)), flags=re.S)
    return {re.sub(r"^\d+\. ", "", h.strip()) for h in re.findall(r"^##+ (.*)$", text, re.M)}


def unfounded(text: str) -> list[str]:
    """Places that are not there."""
    known = {path.name: headings(path) for path in LESSONS}
    named = {place for _, places in topics(text) for place in places}
    wrong = [p for p in named if p[2] not in known.get(p[1], ()) or number_of(Path(p[1])) != p[0]]
    return sorted(f"{file}: {heading}" for _, file, heading in wrong)


def untreated(text: str) -> list[str]:
    """Claims whose section of a page has no row that leads to their lesson."""
    treated = {(source, int(lesson.rstrip("ab"))) for source, places in topics(text) for lesson, _, _ in places}
    missing = {(s, c.lesson) for c in claims().values() for s in c.sources} - treated
    return sorted(f"{source}: lesson {lesson}" for source, lesson in missing)


def misquoted(text: str) -> list[str]:
    """Lessons that the first table does not give with their title, question and minutes."""
    found = []
    for path in LESSONS:
        first = nbformat.read(path, as_version=4).cells[0].source
        number, title = re.match(r"# (\d+[ab]?)\. (.*)", first).groups()
        question, minutes = re.search(r"^\*\*(.*)\*\*$", first, re.M)[1], re.search(r"About (\d+) minutes", first)[1]
        if f"| {number} | [{title}]({path.name}) | {question} | {minutes} |" not in text:
            found.append(path.name)
    return found


def test_every_section_that_is_named_is_there():
    assert unfounded(SOURCES) == []


def test_every_claims_source_leads_to_the_claims_lesson():
    assert untreated(SOURCES) == []


def test_the_lessons_are_given_in_their_own_words():
    assert misquoted(TEXT) == []


@pytest.mark.parametrize(
    ("check", "old", "new"),
    [
        (unfounded, "What is a unit?", "What was a unit?"),
        (unfounded, "[6a](06a_fsdp.ipynb) What is a unit?", "[7a](06a_fsdp.ipynb) What is a unit?"),
        (untreated, "| 002 FMD d |", "| 002 FMD e |"),
        (untreated, "[9b](09b_offload_to_drives.ipynb) States in a file", "[10a](10a_many_nodes.ipynb) A straggler"),
        (misquoted, "FSDP unit by unit](", "FSDP](")
    ],
)  # fmt: skip
def test_a_planted_mistake_is_found(check, old, new):
    text = TEXT if check is misquoted else SOURCES
    assert old in text
    assert len(check(text.replace(old, new))) == 1


def test_the_weeks_have_each_lab_by_its_name_with_its_hours():
    row = r"^\| (\d+) \| \[(.+?)\]\(.*\| (\d+) \| [^|]+ \|$"
    labs = {
        n: (name, int(hours)) for n, name, hours in re.findall(row, (ROOT / "labs" / "README.md").read_text(), re.M)
    }
    section = TEXT.split("\n## Six weeks with labs\n")[1].split("\n## ")[0]
    weeks = [line.strip("| ").split(" | ") for line in section.splitlines() if re.match(r"\| \d ", line)]
    assert [week[0] for week in weeks] == list("123456")
    for *_, named, hours in weeks:
        of_week = [each.split(", ", 1) for each in named.split("; ")]
        assert all(labs[n][0] == name for n, name in of_week)
        assert sum(labs[n][1] for n, _ in of_week) == int(hours)
    after = re.findall(r"(\d+) \(([^)]+)\)", section.split("For two weeks more")[1])
    assert all(labs[n][0] == name for n, name in after)
    assert {*labs} == {n for *_, named, _ in weeks for n in re.findall(r"(?:^|; )(\d+),", named)} | {
        n for n, _ in after
    }
