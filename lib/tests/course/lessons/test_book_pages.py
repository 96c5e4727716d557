"""The book has a page for everything that its pages link to, and each lesson stands in one part, as the README says."""

import re

import nbformat

from shardcourse.lessons.book import add_texts, parts
from shardcourse.lessons.cells import markdown
from shardcourse.repository import ROOT

LESSONS = sorted(ROOT.glob("course/*.ipynb"))


def test_what_a_page_links_to_is_a_page(tmp_path):
    add_texts(tmp_path)
    pages = {file.relative_to(tmp_path): text_of(file) for file in tmp_path.rglob("*.*") if file.suffix != ".png"}
    pages |= {lesson.relative_to(ROOT): text_of(lesson) for lesson in LESSONS}
    assert len(pages) > len(LESSONS) + 10
    for page, text in pages.items():
        for target in re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", text):
            assert (ROOT / page.parent / target).resolve().relative_to(ROOT) in pages, f"{page} links to {target}"


def text_of(file):
    """Return the text that a reader sees as such: of a notebook, its Markdown cells."""
    if file.suffix == ".ipynb":
        return markdown(nbformat.read(file, as_version=4))
    return file.read_text() if file.suffix == ".md" else ""


def test_each_lesson_stands_in_one_part():
    listed = parts((ROOT / "course" / "README.md").read_text())
    assert sorted(name for names in listed.values() for name in names) == [lesson.stem for lesson in LESSONS]
    assert list(listed)[:2] == ["Ground", "Data parallel"] and list(listed)[-1] == "Appendix"
