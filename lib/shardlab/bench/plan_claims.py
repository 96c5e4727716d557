"""The claims on trial: each tried again, by the planner, by torch, or on real ranks."""

from rich.console import Console
from rich.markup import escape
from rich.progress import track

from shardlab.claims import claims, try_claim
from shardlab.show.claims_table import claims_table, said


def run(only: str = "") -> list[dict]:
    """A row for each claim whose id begins with `only`; what differs from the file stands under `problems`."""
    chosen = [c for c in claims().values() if c.id.startswith(only)]
    return [_row(c) for c in track(chosen, "trying claims", transient=True)]


def _row(claim) -> dict:
    trial = try_claim(claim)
    return {
        "id": claim.id,
        "sources": list(claim.sources),
        "claim": claim.claim,
        "says": said(claim),
        "computed": trial.found,
        "verdict": trial.verdict,
        "shown_by": claim.shown_by,
        "problems": list(trial.problems),
    }


def show(rows: list[dict]) -> None:
    console, file = Console(), claims()
    console.print(claims_table([file[row["id"]] for row in rows]))
    for problem in (p for row in rows for p in row["problems"]):
        console.print(f"[red]not as the file says[/]: {escape(problem)}")
