"""Show the report of a class as a page of its own, and as tables in the terminal."""

from html import escape
from pathlib import Path

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from grading.gradebook.error_advice import visible
from grading.gradebook.result_cache import write_whole
from grading.reports.class_report import ALIKE, ClassReport

_STYLE = """
:root { color-scheme: light dark; --bar: #4477aa; --line: #8886; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.2rem; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n, th.n { text-align: right; white-space: nowrap; } .track { width: 32rem; max-width: 60vw; }
.bar { background: var(--bar); height: 1rem; }
.parts { display: flex; height: 1rem; min-width: 10rem; } .full { background: #228833; } .part { background: #ccbb44; }
.none { background: #cc3311; } small { opacity: .75; }
"""


def write_page(report: ClassReport, file: Path) -> None:
    write_whole(file, page(report))


def page(report: ClassReport) -> str:
    sections = [
        f"<h1>{escape(report.lab)}</h1><p>{'; '.join(map(escape, report.summary()))}.</p>",
        "<h2>Points</h2>" + _bars(report.histogram()) if report.grades else "<p>Nobody has a grade yet.</p>",
        "<h2>Checks, the most missed first</h2>" + _checks(report),
    ]
    if report.written:
        rows = [[escape(student), str(w.words), escape(w.text)] for student, w in report.written]
        sections.append("<h2>Written arguments</h2>" + _table(["student", "words", ""], rows, numbers={1}))
    if report.not_graded:
        rows = [[escape(student), escape(why)] for student, why in report.not_graded.items()]
        sections.append("<h2>Without a grade</h2>" + _table(["student", "why"], rows))
    if report.notes:
        rows = [[escape(student), escape(" ".join(said))] for student, said in report.notes.items()]
        sections.append("<h2>Repaired before grading</h2>" + _table(["student", ""], rows))
    slowest = [[escape(s), f"{seconds:.0f} s"] for s, seconds in report.slowest]
    sections.append("<h2>What took longest to judge</h2>" + _table(["student", ""], slowest, numbers={1}))
    if report.judged_again:
        rows = [[escape(s), str(n)] for s, n in report.judged_again.items()]
        sections.append("<h2>Judged again, because of noise</h2>" + _table(["student", "checks"], rows, numbers={1}))
    if report.pairs:
        rows = [[escape(p.first), escape(p.second), f"{p.share:.0%}"] for p in report.pairs]
        sections.append(
            f"<h2>Much alike</h2><p>Runs of syntax that two share and few others have, {ALIKE:.0%} of the smaller "
            "one's or more. It is no proof: read both.</p>" + _table(["", "", "shared"], rows, numbers={2})
        )
    about = [[escape(name), escape(str(value))] for name, value in report.environment.items()]
    sections.append("<h2>Where it was judged</h2>" + _table(["", ""], about))
    head = f"<meta charset='utf-8'><title>{escape(report.lab)}: the class</title><style>{_STYLE}</style>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(sections)}</body></html>\n"


def _bars(histogram: list[tuple[str, int]]) -> str:
    most = max((n for _, n in histogram), default=0) or 1
    bars = [
        f"<div class='track'><div class='bar' style='width: {100 * n / most:.0f}%'></div></div>" for _, n in histogram
    ]
    rows = [[escape(label), bar, str(n)] for (label, n), bar in zip(histogram, bars, strict=True)]
    return _table(["points", "", "students"], rows, numbers={2})


def _checks(report: ClassReport) -> str:
    rows = []
    for row in report.missed_first:
        counts = (("full", row.full), ("part", row.part), ("none", row.none))
        parts = "".join(f"<div class='{name}' style='flex: {n}'></div>" for name, n in counts if n)
        said = "<br>".join(f"<small>{n} ×</small> {escape(cause)}" for cause, n in row.commonest)
        numbers = f"{row.full} / {row.part} / {row.none}"
        rows.append([escape(row.check), f"{row.points:g}", f"<div class='parts'>{parts}</div>{numbers}", said])
    return _table(["check", "points", "all / some / none", "said most often"], rows, numbers={1})


def _table(headings: list[str], rows: list[list[str]], numbers: set[int] = frozenset()) -> str:
    """Return an HTML table; its cells are HTML already."""

    def line(tag: str, cells: list[str]) -> str:
        made = (f"<{tag}{' class=n' if i in numbers else ''}>{cell}</{tag}>" for i, cell in enumerate(cells))
        return f"<tr>{''.join(made)}</tr>"

    return f"<table>{line('th', headings)}{''.join(line('td', row) for row in rows)}</table>"


def show(report: ClassReport, console: Console) -> None:
    def say(words: str) -> None:
        console.print(visible(words), highlight=False, markup=False)

    say(f"{report.lab}: {'; '.join(report.summary())}")
    console.print(_histogram(report) if report.grades else "nobody has a grade yet")
    checks = Table("check", "points", "all", "some", "none", "said most often", header_style="bold")
    for row in report.missed_first:
        said = Group(*(Text(visible(f"{n} × {cause}")) for cause, n in row.commonest))
        checks.add_row(row.check, f"{row.points:g}", str(row.full), str(row.part), str(row.none), said)
    console.print(checks)
    if report.written:
        arguments = Table("student", "words", "written argument", header_style="bold")
        for student, w in report.written:
            arguments.add_row(Text(student), str(w.words), w.text)
        console.print(arguments)
    for student, why in report.not_graded.items():
        say(f"{student} has no grade: {why}")
    for student, said in report.notes.items():
        say(f"{student}: {' '.join(said)}")
    say(f"longest to judge: {', '.join(f'{s} {seconds:.0f} s' for s, seconds in report.slowest)}")
    for p in report.pairs:
        say(f"much alike: {p.first} and {p.second}, {p.share:.0%}; read both")


def _histogram(report: ClassReport) -> Table:
    table, most = Table("points", "students", "", header_style="bold"), max(n for _, n in report.histogram()) or 1
    for label, n in report.histogram():
        table.add_row(label, str(n), "█" * round(40 * n / most))
    return table
