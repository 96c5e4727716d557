"""Logs in the shape of public threads: `shardlab why` names the first cause that the thread has found.

public_logs.csv has a row for each: the log in logs/public/, the thread, the right entry (several with |; none if the
first cause is an error of somebody's program, which no index can know), words of the right line, the round in which
it was collected, and what `why` said blind, that is before anything was mended after this log: right, unknown or wrong.
The column cause says the cause in words, for the rounds from 4 on. It was written down and committed before `why` was
run. The last column says which of the entry's causes this is (several with |; 0 if none of them). Whoever adds logs
begins a new round.
"""

import csv
from collections import Counter
from pathlib import Path

import pytest

from shardwhy.answer import answer
from shardwhy.first_cause import diagnose
from shardwhy.index import load
from shardwhy.logs import files_of, read
from shardwhy.waits import answer_stacks, stacks_of

HERE = Path(__file__).parent
ENTRIES = load()
with (HERE / "public_logs.csv").open(newline="") as file:
    ROWS = list(csv.DictReader(file))
STILL_UNKNOWN = {"node_number_set_on_one_node"}  # logs whose cause `why` does not know; it says so
STILL_WRONG: set[str] = set()  # logs for which it names another cause


def verdict(row: dict) -> str:
    """Return right, unknown (an honest "I don't know"), or wrong."""
    logs = read(files_of([str(HERE / "logs/public" / f"{row['log']}.txt")]))
    diagnosis = diagnose(logs, ENTRIES.values())
    cause = diagnosis.cause
    if not cause and (stacks := [stack for log in logs for stack in stacks_of(log)]):
        return "right" if row["words"] in " ".join(answer_stacks(stacks)) else "unknown"
    line = cause.line if cause else diagnosis.error_line
    there = line is not None and row["words"] in line.text
    if cause and cause.entry:
        return "right" if there and cause.entry.id in row["entry"].split("|") else "wrong"
    return "right" if there and not row["entry"] else "unknown"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["log"])
def test_the_first_cause_of_a_public_log(row):
    expected = "unknown" if row["log"] in STILL_UNKNOWN else "wrong" if row["log"] in STILL_WRONG else "right"
    assert verdict(row) == expected


def test_most_are_right_and_hardly_any_is_wrong():
    assert len(ROWS) - len(STILL_UNKNOWN | STILL_WRONG) >= 0.85 * len(ROWS) and len(STILL_WRONG) <= 2


def test_every_log_has_one_row_and_every_row_a_thread_of_its_own():
    assert {path.stem for path in (HERE / "logs/public").glob("*")} == {row["log"] for row in ROWS}
    assert {n for n in Counter(row["thread"] for row in ROWS).values()} == {1}
    assert {entry for row in ROWS for entry in filter(None, row["entry"].split("|"))} <= ENTRIES.keys()
    assert {row["blind"] for row in ROWS} == {"right", "unknown", "wrong"}


NUMBERED = [row for row in ROWS if row["number"] and row["log"] not in STILL_UNKNOWN | STILL_WRONG]


def chosen(row: dict) -> tuple[bool, int | None]:
    """Return whether the answer is a family's, and the number of the cause that a sign chooses."""
    diagnosis = diagnose(read(files_of([str(HERE / "logs/public" / f"{row['log']}.txt")])), ENTRIES.values())
    entry = diagnosis.cause.entry
    number = 1 if len(entry.causes) == 1 else entry.signed_cause(diagnosis.cause.line.text, diagnosis.around)
    return entry.family, number


def test_a_sign_chooses_the_cause_of_the_thread():
    """An entry's sign is always right, so the answer names its cause alone. A family's is right in most logs."""
    signed = [(family, n, row) for row in NUMBERED for family, n in [chosen(row)] if n]
    wrong = [(family, row["log"]) for family, n, row in signed if str(n) not in row["number"].split("|")]
    assert [log for family, log in wrong if not family] == []
    assert len(wrong) <= 0.2 * sum(family for family, _, _ in signed)


def test_few_causes_are_missing_in_the_entry_that_is_right():
    assert sum(row["number"] == "0" for row in NUMBERED) <= 0.03 * len(NUMBERED)
    asked = [(row["log"], int(n)) for row in NUMBERED for n in row["number"].split("|")]
    most = {row["log"]: max(len(ENTRIES[entry].causes) for entry in row["entry"].split("|")) for row in NUMBERED}
    assert [log for log, n in asked if n > most[log]] == []


@pytest.mark.parametrize("log", [row["log"] for row in ROWS])
def test_an_answer_to_a_public_log_has_at_most_ten_lines(log):
    logs = read(files_of([str(HERE / "logs/public" / f"{log}.txt")]))
    assert len(answer(diagnose(logs, ENTRIES.values()), logs)) <= 10
