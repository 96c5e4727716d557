"""Leaderboard: a table of a lab's class, the fastest first, as CSV and Markdown, from the gradebook and its verdicts.

A lab has one if its `lab` module has `standing(verdicts)`. For a submission to be ranked, it returns its tokens a
second over the reference line's, peak over memory of the fullest card, and in words what leaves a node; else None.
Nothing is stored here: the files can be deleted, and the next grading writes them again. Names come from
grading/leaderboard/pseudonyms.csv, "student,pseudonym" a line, if it has them.
"""

import csv
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from grading.gradebook.error_advice import shown
from grading.gradebook.nbgrader_classroom import Classroom
from grading.gradebook.result_cache import write_whole
from grading.judge.find_lab import lab_module
from grading.reports.csv_export import as_csv

COLUMNS = ("rank", "student", "tokens/s over the line's", "peak over memory", "leaves a node", "when")
THE_LINE = "the reference line"


def write_leaderboard(classroom: Classroom, lab: str) -> list[Path]:
    """Write the leaderboard. Return the files; none if the lab has no leaderboard.

    Raises OSError that names the file if one can't be written. The earlier file then stays.
    """
    if not hasattr(lab_module(lab), "standing"):
        return []
    rows = _rows(classroom, lab)
    folder = classroom.root / "grading" / "leaderboard"
    written = {folder / f"{lab}.csv": as_csv([COLUMNS, *rows]), folder / f"{lab}.md": _as_markdown(lab, rows)}
    for path, text in written.items():
        try:
            write_whole(path, text)
        except OSError as error:
            raise OSError(f"the leaderboard {path} can't be written ({error.strerror}); grades stay") from error
    return [*written]


def _rows(classroom: Classroom, lab: str) -> list[tuple[str, ...]]:
    """Rows of the table, the fastest first. The reference line has a row, but no rank."""
    names, found = _pseudonyms(classroom.root), [(1.0, THE_LINE, "", "", "")]
    for student in classroom.students(lab, "autograded"):
        try:
            if standing := lab_module(lab).standing(classroom.grade(lab, student).verdicts):
                written_s = classroom.autograded(lab, student).stat().st_mtime
                when = datetime.fromtimestamp(written_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
                share, fullness, leaves = standing
                found.append((share, names.get(student, shown(student)), f"{fullness:.2f}", leaves, when))
        except LookupError:  # graded by hand, or taken out of the gradebook
            continue
        except Exception as error:  # a failure for one student must not stop the others
            logging.getLogger(__name__).warning("%s is not in the leaderboard: %r", student, error)
    found.sort(key=lambda row: (-row[0], row[1]))
    ranked = [row[1] for row in found if row[1] != THE_LINE]
    return [
        (str(ranked.index(name) + 1) if name in ranked else "", name, f"{share:.2f}", *rest)
        for share, name, *rest in found
    ]


def _pseudonyms(root: Path) -> dict[str, str]:
    file = root / "grading" / "leaderboard" / "pseudonyms.csv"
    if not file.exists():
        return {}
    return {row[0]: row[1] for row in csv.reader(file.read_text(encoding="utf-8-sig").splitlines()) if len(row) == 2}


def _as_markdown(lab: str, rows: Sequence[tuple[str, ...]]) -> str:
    lines = [f"# {lab}", "", _line(COLUMNS), _line(["---"] * len(COLUMNS)), *map(_line, rows)]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
