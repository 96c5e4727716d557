"""`shardlab claims`: each claim of the pages, its findings and its verdict; `--check` tries the claims again."""

import json
import sys
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

Part = Annotated[str, typer.Argument(help="an id, or a part of one; all claims if left out")]
Lesson = Annotated[int | None, typer.Option("--lesson", min=0, max=15, help="only those that this lesson shows")]
Verdict = Annotated[str | None, typer.Option("--verdict", help='"holds", "holds under conditions" or "wrong"')]
Check = Annotated[bool, typer.Option("--check", help="try them again: half a minute, on real ranks in part")]
JsonFile = Annotated[str | None, typer.Option("--json", help="write them to this file; - for the terminal")]


def claims_command(
    part: Part = "", lesson: Lesson = None, verdict: Verdict = None, check: Check = False, json_file: JsonFile = None
) -> None:
    """Claims of the pages that this course grew from, each computed or measured; one that is named, in full."""
    from shardcourse.claims.table import claims_table, one_claim

    console = Console(stderr=json_file == "-", highlight=False)
    try:
        chosen = _choose(part, lesson, verdict)
    except ValueError as error:
        print(f"shardlab claims: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    console.print(one_claim(chosen[0]) if len(chosen) == 1 else claims_table(chosen, console.width))
    problems = _try(chosen, console) if check else []
    _write([asdict(claim) for claim in chosen], json_file)
    raise typer.Exit(bool(problems))


def _choose(part: str, lesson: int | None, verdict: str | None) -> list:
    """Return the claims that match. Raises ValueError, with the nearest value, if there is none."""
    from shardcourse.claims.claim import VERDICTS, claims
    from shardplan.strategy import one_of

    if verdict:
        one_of("verdict", verdict, VERDICTS)
    known = claims()
    named = [known[part]] if part in known else [c for c in known.values() if part in c.id]
    if not named:
        near = get_close_matches(part, known, 1)
        advice = f"did you mean {near[0]!r}?" if near else "`shardlab claims` lists all"
        raise ValueError(f"no claim has {part!r} in its id: {advice}")
    found = [c for c in named if lesson in (None, c.lesson) and verdict in (None, c.verdict)]
    if not found:
        raise ValueError("no such claim: there are others with this name, but in other lessons or with other verdicts")
    return found


def _try(chosen: list, console: Console) -> list[str]:
    from shardcourse.claims import try_claim

    trials = [try_claim(c) for c in track(chosen, "trying claims", console=console, transient=True)]
    problems = [p for t in trials for p in t.problems]
    for problem in problems:
        console.print(problem, style="red", markup=False)
    if not problems:
        console.print(f"{len(trials)} tried: each verdict is as the file says", style="green")
    return problems


def _write(claims: list[dict], json_file: str | None) -> None:
    text = json.dumps(claims, indent=2, ensure_ascii=False)
    if json_file == "-":
        print(text)
    elif json_file:
        Path(json_file).write_text(text + "\n", encoding="utf-8")
