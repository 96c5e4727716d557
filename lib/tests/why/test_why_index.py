"""The index of messages: a wrong entry is refused, and each entry leads to a lesson and a program that are there."""

import re
from pathlib import Path

import nbformat
import pytest

from shardcourse.repository import ROOT
from shardwhy.first_cause import diagnose
from shardwhy.index import PROGRAMS, BadEntry, load, load_files
from shardwhy.literals import literals
from shardwhy.logs import Log
from shardwhy.page import TOPICS

ENTRIES = load()
GOOD = """[port_in_use]
message = "address already in use"
pattern = '''EADDRINUSE|address already in use'''
means = "Another program has the port."
causes = ["An old job still runs.", "Two jobs share a node."]
tell = "ss -ltnp"
do = "Take another port."
lesson = "00_start_here.ipynb"
section = "Start"
source = "torch 2.13, torch/csrc/distributed/c10d/socket.cpp"
program = true
consequence = false
"""
WRONG = [  # the field, what it is replaced by ("" takes it out), words
    *((field, "", "is missing") for field in ("message", "pattern", "means", "causes", "tell", "do")),
    *((field, "", "is missing") for field in ("lesson", "section", "source")),
    ("consequence", "", "is missing"),
    ("means", "means = ' '", "not empty"),
    ("tell", "tell = 3", "is a text"),
    ("do", "do = ['a']", "is a text"),
    ("message", 'message = "a\\nb"', "is one line"),
    ("causes", "causes = 'one'", "is a list of sentences"),
    ("causes", "causes = []", "at least one"),
    ("causes", "causes = ['a', '']", "is a list of sentences"),
    ("consequence", "consequence = 'no'", "is true or false"),
    ("program", "program = 1", "is true or false"),
    ("program", "", "gpu_only says why"),
    ("program", "program = true\ngpu_only = 'NCCL'", "gpu_only says why"),
    ("lesson", "lesson = '00_start_here'", "is the name of a notebook"),
    ("pattern", "pattern = 'a('", "is not a regular expression"),
    ("pattern", "pattern = 'x*'", "matches any line"),
    ("pattern", "pattern = 'rank'", "matches any line"),
    ("min_torch", "program = true\nmin_torch = 'new'", "is a version"),
    ("signs", "program = true\nsigns = 'fork'", "the number of a cause"),
    ("signs", "program = true\nsigns = {3 = 'fork'}", "the number of a cause"),
    ("signs", "program = true\nsigns = {2 = 'a('}", "a regular expression"),
    ("near", "program = true\nnear = {3 = 'fork'}", "the number of a cause"),
    ("near", "program = true\nnear = {2 = 'a('}", "a regular expression"),
    ("hints", "program = true\nhints = {3 = 'fork'}", "the number of a cause"),
    ("hints", "program = true\nhints = {2 = 'a('}", "a regular expression"),
    ("family", "program = true\nfamily = 'yes'", "is true or false"),
    ("colour", "program = true\ncolour = 'red'", "there is no such field"),
]


def write(folder: Path, text: str, name: str = "launch.toml") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_a_good_entry_is_read(tmp_path):
    entry = load_files([write(tmp_path, GOOD)])["port_in_use"]
    assert (entry.topic, entry.causes[1], entry.program) == ("launch", "Two jobs share a node.", True)
    assert entry.regex.search("errno: 98 - address already in use")


def test_a_cause_is_chosen_by_the_words_of_the_line_and_then_by_those_around_it(tmp_path):
    text = GOOD + "signs = {2 = 'port 29500'}\nnear = {1 = 'srun'}\n"
    entry = load_files([write(tmp_path, text)])["port_in_use"]
    assert entry.signed_cause("port 29500: address already in use", around="srun: error") == 2
    assert entry.signed_cause("address already in use", around="srun: error") == 1
    assert entry.signed_cause("address already in use") is None


def test_a_hint_names_a_cause_but_is_no_sign_of_it(tmp_path):
    entry = load_files([write(tmp_path, GOOD + "hints = {2 = 'srun'}\n")])["port_in_use"]
    assert (entry.hinted_cause("srun: error"), entry.hinted_cause("mpirun: error")) == (2, None)
    assert entry.signed_cause("address already in use", around="srun: error") is None


@pytest.mark.parametrize(("field", "text", "words"), WRONG)
def test_a_wrong_field_is_refused_with_its_place(field, text, words, tmp_path):
    line = field if re.search(f"^{field} =", GOOD, re.M) else "program"
    with pytest.raises(BadEntry) as told:
        load_files([write(tmp_path, re.sub(f"^{line} = .*$", lambda _: text, GOOD, flags=re.M))])
    assert str(told.value).startswith(f"launch.toml [port_in_use] {field}: ") and words in str(told.value)


@pytest.mark.parametrize("pattern", ["[a-f]+-[0-9]+Q", "(?i)address in use", "abc|address"])
def test_a_pattern_that_no_search_can_begin_with_is_refused(pattern, tmp_path):
    entries = load_files([write(tmp_path, re.sub("^pattern = .*", f"pattern = '{pattern}'", GOOD, flags=re.M))])
    with pytest.raises(BadEntry, match=r"launch.toml \[port_in_use\] pattern: has no literal part of 4 letters"):
        diagnose([Log(b"x")], entries.values())


def test_what_is_no_entry_is_refused(tmp_path):
    for text, words in [
        ("[a", "launch.toml is not TOML"),
        ("message = 'a'\n", "belongs to no entry"),
        (GOOD.replace("port_in_use", "Port-In-Use"), "lowercase_with_underscores"),
    ]:
        with pytest.raises(BadEntry, match=re.escape(words)):
            load_files([write(tmp_path, text)])


def test_an_id_of_two_files_is_refused(tmp_path):
    files = [write(tmp_path, GOOD), write(tmp_path, GOOD, "nccl.toml")]
    with pytest.raises(BadEntry, match=r"nccl.toml \[port_in_use\].*launch.toml"):
        load_files(files)


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        ("Expected to mark .* once", {"Expected to mark "}),
        (r"exitcode *: -9", {"exitcode"}),
        ("abcd|cdefg", {"abcd", "cdefg"}),
        ("ab|cdefg", set()),
        ("No (backend|device) type associated", {" type associated"}),
        ("(?:Timed out|timed out) after", {"Timed out", "timed out"}),
        ("(optional part)?needed", {"needed"}),
        ("[Ww]atchdog caught", {"atchdog caught"}),
        ("a.b.c", set()),
    ],
)
def test_a_match_contains_one_of_the_literal_parts(pattern, parts):
    assert literals(pattern) == parts


def test_the_index_is_large_enough_and_of_the_topics_of_the_page():
    assert len(ENTRIES) >= 80
    assert {entry.topic for entry in ENTRIES.values()} <= TOPICS.keys()


def test_every_section_is_a_heading_of_its_lesson():
    found = {lesson: titles(ROOT / "course" / lesson) for lesson in {entry.lesson for entry in ENTRIES.values()}}
    assert [f"{e.id}: {e.lesson} {e.section}" for e in ENTRIES.values() if e.section not in found[e.lesson]] == []


def titles(lesson: Path) -> set[str]:
    """Headings, with their numbers and without."""
    text = "\n\n".join(c.source for c in nbformat.read(lesson, as_version=4).cells if c.cell_type == "markdown")
    found = {h.strip() for h in re.findall(r"^##+ (.*)$", text, re.M)}
    return found | {re.sub(r"^\d+\. ", "", h) for h in found}


def test_every_pattern_finds_its_own_message():
    """A message is shortened with "...": then one of its parts, in a line of its own, need not be enough."""
    lost = [e.id for e in ENTRIES.values() if "..." not in e.message and not e.regex.search(e.message)]
    assert lost == []


def test_no_entry_hides_another():
    """The message of each entry, pasted alone, leads to this entry."""
    wrong = []
    for entry in ENTRIES.values():
        if "..." not in entry.message:
            cause = diagnose([Log(entry.message.encode())], ENTRIES.values()).cause
            found = cause and cause.entry and cause.entry.id
            wrong += [] if found == entry.id else [f"{entry.id}: {found}"]
    assert wrong == []


def test_every_program_is_there_and_short_and_no_other():
    there = {file.stem: file for file in PROGRAMS.glob("*.py")}
    assert there.keys() == {entry.id for entry in ENTRIES.values() if entry.program}
    assert {name: n for name, file in there.items() if (n := lines_of(file.read_text())) > 20} == {}


def lines_of(program: str) -> int:
    """Lines that are not empty, without the docstring, which every program has."""
    docstring, rest = re.match(r'"""(.*?)"""\n(.*)', program, re.S).groups()
    assert docstring.strip()
    return sum(bool(line.strip()) for line in rest.splitlines())
