"""The claims on trial in print: a table for a terminal, one claim in full, and a page for a notebook."""

from collections.abc import Sequence
from dataclasses import replace
from html import escape

from rich import box
from rich.markup import escape as plain
from rich.table import Table

from shardcourse.claims.claim import PAGES, Claim, Findings, Value, claims
from shardcourse.claims.trial import Trial, try_claim
from shardcourse.figures.style import BLUE, ORANGE, PINK, TEXT

MARKS = {"holds": "✓", "holds under conditions": "~", "wrong": "✗"}
_RICH = {"holds": "green", "holds under conditions": "yellow", "wrong": "red"}
_HTML = {"holds": BLUE, "holds under conditions": ORANGE, "wrong": PINK}


def claims_table(claims: Sequence[Claim], width: int = 120) -> Table:
    """Return a table with a line for each claim: the verdict's mark, what it says, the findings, id and lesson.

    In a terminal of less than 100 columns all words stand in one column, so that no id is broken: ids are to be typed.
    """
    narrow = width < 100
    table = Table(box=box.SIMPLE, title=counted(claims), caption="✓ holds   ~ holds under conditions   ✗ wrong")
    table.add_column("")
    table.add_column("claim", ratio=1, min_width=0 if narrow else max((len(c.id) for c in claims), default=0))
    for header in () if narrow else ("says", "found"):
        table.add_column(header, justify="right")
    for c in claims:
        mark = f"[{_RICH[c.verdict]}]{MARKS[c.verdict]}[/]"
        says, found = said(c), found_in_short(c.found, c.unit)
        lines = [plain(c.claim), f"says {says}; found {found}"] if narrow else [plain(c.claim)]
        lines += [f"[dim]{c.id}; {', '.join(c.sources)}; lesson {c.lesson}[/]"]
        table.add_row(mark, "\n".join(lines), *(() if narrow else (says, found)))
    return table


def one_claim(claim: Claim) -> Table:
    """Return a table of all findings of a claim, condition by condition."""
    table = Table(box=box.SIMPLE, title=plain(f"{claim.id}: {claim.claim}"), caption=plain(claim.truth))
    table.add_column(f"what was found, by {claim.check}")
    table.add_column(f"says {said(claim)}", justify="right")
    for when, value, mark in _marked(claim):
        table.add_row(plain(when), f"{in_words(value, claim.unit)} {mark}")
    table.add_section()
    table.add_row("verdict", f"[{_RICH[claim.verdict]}]{claim.verdict}[/]")
    table.add_row("shown by, and in lesson", f"{claim.shown_by}, {claim.lesson}")
    table.add_row("from", ", ".join(claim.sources))
    return table


def counted(claims: Sequence[Claim]) -> str:
    """Return a summary: "128 claims: 40 hold, 30 hold under conditions, 58 are wrong"."""
    n = {verdict: sum(c.verdict == verdict for c in claims) for verdict in MARKS}
    holds, conditions, wrong = n.values()
    claim, are = "claim" if len(claims) == 1 else "claims", "is" if wrong == 1 else "are"
    hold, hold_if = ("holds" if n == 1 else "hold" for n in (holds, conditions))
    return f"{len(claims)} {claim}: {holds} {hold}, {conditions} {hold_if} under conditions, {wrong} {are} wrong"


def claims_on_trial(lesson: int | None = None, *ids: str) -> "ClaimsPage":
    """Try the claims that belong to a lesson (all claims if None) on this machine; with `ids`, only these of them.

    Raises RuntimeError if one of them comes out differently from `claims.toml`, ValueError if an id
    names no claim of this lesson.
    """
    chosen = {c.id: c for c in claims().values() if lesson in (None, c.lesson)}
    if strange := [name for name in ids if name not in chosen]:
        raise ValueError(f"lesson {lesson} has no claim {strange[0]!r}: there are {', '.join(chosen)}")
    trials = [try_claim(claim) for claim in (map(chosen.get, ids) if ids else chosen.values())]
    if problems := [problem for trial in trials for problem in trial.problems]:
        raise RuntimeError("on this machine a claim comes out differently:\n" + "\n".join(problems))
    return ClaimsPage([replace(trial.claim, found=trial.found) for trial in trials])


class ClaimsPage:
    """A page of claims, as the last value of a cell. A click on a claim shows its findings and the truth.

    As text, it lists each claim with its verdict and the truth.
    """

    def __init__(self, claims: Sequence[Claim]) -> None:
        self.claims = claims

    def _repr_html_(self) -> str:
        rows, words = "".join(map(_row, self.claims)), f"{counted(self.claims)}. Click on a claim to see why."
        return f'<div style="max-width: 60em"><p style="color: {TEXT}">{words}</p>{rows}</div>'

    def __repr__(self) -> str:
        return "\n".join([counted(self.claims), *map(_lines, self.claims)])


def _lines(c: Claim) -> str:
    """Return one claim as two lines of text: verdict and claim, then the truth."""
    return f"{MARKS[c.verdict]} {c.verdict}: {c.claim}\n    {c.truth}"


def _row(c: Claim) -> str:
    """Return one claim as HTML. It opens without a script, so it works on a web page too."""
    colour = _HTML[c.verdict]
    summary = (
        f'<span style="color: {colour}; font-weight: bold">{MARKS[c.verdict]} {c.verdict}</span> {escape(c.claim)}'
    )
    pages = "; ".join(_page(number, c.sources) for number in dict.fromkeys(source[:3] for source in c.sources))
    rows = [("claimed", said(c), ""), *((when, in_words(value, c.unit), mark) for when, value, mark in _marked(c))]
    found = "".join(
        f"<tr><td style='{_LEFT}'>{escape(when)}</td><td style='{_RIGHT}'>{words}</td><td>{mark}</td></tr>"
        for when, words, mark in rows
    )
    return (
        f"<details style='margin: 0.3em 0'><summary style='cursor: pointer'>{summary}</summary>"
        f"<div style='margin: 0.3em 1.5em'><table style='font-size: inherit'>{found}</table>"
        f"<p>{escape(c.truth)} <span style='color: {TEXT}'>From: {escape(pages)}. Shown by {_SHOWN[c.shown_by]}; "
        f"lesson {c.lesson}.</span></p>"
        "</div></details>"
    )


def _page(number: str, sources: Sequence[str]) -> str:
    """Return a page's title and author, and its sections among `sources` as the page names them."""
    sections = ", ".join(source[4:] for source in sources if source[:3] == number)
    return f"{PAGES[number]} ({number}: {sections})"


_SHOWN = {"plan": "the planner's formulas", "measured": "a measurement", "torch": "PyTorch's own interface"}
_LEFT, _RIGHT = "text-align: left; padding-right: 1.5em", "text-align: right; padding-right: 0.5em"


def _marked(c: Claim) -> list[tuple[str, Value, str]]:
    """Return (condition, finding, mark) triples. The mark says if the finding agrees with the claim."""
    agrees = Trial(c, c.found).agrees
    return [(when, value, MARKS["holds" if agrees[when] else "wrong"]) for when, value in c.found.items()]


# -------------------------------------------------------------------------------------------------------------- words


def said(claim: Claim) -> str:
    """Return the claim's value in words: "34 GB", "15% to 25%", "at least 50%"."""
    if not isinstance(claim.says, tuple):
        return in_words(claim.says, claim.unit)
    low, high = claim.says
    if (claim.unit, high) == ("share", 1) or high >= 1e9:
        return f"at least {in_words(low, claim.unit)}"
    if low == 0:
        return f"at most {in_words(high, claim.unit)}"
    return f"{in_words(low, '' if claim.unit != 'share' else 'share')} to {in_words(high, claim.unit)}"


def found_in_short(found: Findings, unit: str) -> str:
    """Return the findings in short: "38 to 68 GB"; "1 yes, 3 no"."""
    values = list(found.values())
    if len({in_words(v, unit) for v in values}) == 1:
        return in_words(values[0], unit)
    if any(isinstance(v, (bool, str)) for v in values):
        counts = {
            v: sum(in_words(w, unit) == v for w in values) for v in dict.fromkeys(in_words(v, unit) for v in values)
        }
        return ", ".join(f"{n} {v}" for v, n in counts.items())
    return f"{in_words(min(values), '' if unit != 'share' else 'share')} to {in_words(max(values), unit)}"


def in_words(value: Value, unit: str = "") -> str:
    """Return the value with about three digits and its unit."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if unit == "share":
        return f"{value:.0%}" if value >= 0.1 else f"{value:.1%}"
    digits = f"{value:,.0f}" if abs(value) >= 100 or value == round(value) else f"{value:.3g}"
    return f"{digits}{'' if unit in ('', 'x') else ' '}{unit}"
