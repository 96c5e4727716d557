"""course/messages.md is what the index says, and its links lead somewhere."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from shardcourse.repository import ROOT
from shardwhy.index import load
from shardwhy.page import PAGE, anchor_of, page

EXAMPLE = load(Path(__file__).parent / "symptoms")


def test_the_page_is_current():
    assert PAGE.read_text() == page(load()), "run `python -m shardwhy.page`"


def test_the_page_has_all_of_every_entry():
    text = re.sub(r"\\([$_])", r"\1", page(EXAMPLE))
    assert f"lists {len(EXAMPLE)} messages" in text
    for e in EXAMPLE.values():
        own = re.search(rf"^### {e.id}\n(.*?)(?=^##|\Z)", text, re.S | re.M)[1]
        for part in (f"`{e.message}`", e.means, *e.causes, e.tell, e.do, f"]({e.lesson})", e.section, e.source):
            assert part in own, (e.id, part)
        assert (f"programs/{e.id}.py" in own) == e.program and e.gpu_only in own
        assert f"- [`{e.message}`](#{e.id})" in text


def test_causes_are_numbered_in_order():
    assert "1. Reentrant checkpointing.\n2. A shared weight.\n" in page(EXAMPLE)


def test_a_message_with_backquotes_is_verbatim():
    entry = replace(EXAMPLE["killed"], message="the `forward` function")
    assert "\n`` the `forward` function ``\n" in page({"killed": entry})


def test_the_course_leads_to_the_page_and_the_page_to_lessons():
    assert "(messages.md)" in (ROOT / "course" / "README.md").read_text()
    for lesson in set(re.findall(r"\]\((\w+\.ipynb)\)", PAGE.read_text())):
        assert (ROOT / "course" / lesson).exists()


def test_each_lesson_leads_to_its_messages_and_the_page_leads_back():
    """In both directions: a lesson with entries has one link to its list on the page, and no other lesson has one."""
    entries, text = load(), PAGE.read_text()
    last = text[text.index("\n## Messages of each lesson\n") :]
    lists = {anchor: own for anchor, own in re.findall(r"^### (lesson_\w+)\n(.*?)(?=^###|\Z)", last, re.S | re.M)}
    for entry in entries.values():
        assert f'- "{entry.section}": [' in lists[anchor_of(entry.lesson)]
        assert lists[anchor_of(entry.lesson)].count(f"(#{entry.id})") == last.count(f"(#{entry.id})") == 1
    expected = {entry.lesson: [anchor_of(entry.lesson)] for entry in entries.values()}
    found = {}
    for lesson in sorted((ROOT / "course").glob("*.ipynb")):
        if links := re.findall(r"\]\(messages\.md#(lesson_\w+)\)", lesson.read_text()):
            found[lesson.name] = links
    assert found == expected and lists.keys() == {anchor for anchors in expected.values() for anchor in anchors}


def test_what_a_shell_or_python_writes_is_no_formula_and_not_bold():
    entry = replace(EXAMPLE["killed"], do="Set A=/tmp/a_$RANK and B=/tmp/b_$RANK in __init__, as `$C` in `__all__`.")
    assert r"A=/tmp/a_\$RANK and B=/tmp/b_\$RANK in \_\_init\_\_, as `$C` in `__all__`." in page({"killed": entry})


@pytest.mark.parametrize("file", sorted(PAGE.parent.glob("*.md")), ids=lambda file: file.stem)
def test_no_page_has_a_formula_or_a_bold_word_by_accident(file):
    prose = re.sub(r"^```.*?^```|(`+)[^`].*?\1", "", file.read_text(), flags=re.S | re.M)
    assert re.findall(r"(?<!\\)\$|(?<![\\\w])__\w+__", prose) == []
