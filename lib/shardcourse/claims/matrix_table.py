"""The decision matrix as a table: the page's choice, whether it fits, and the fastest plan that fits."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from shardcourse.claims.claim import Findings
from shardcourse.claims.exercises import Exercise
from shardcourse.claims.table import in_words as claim_words
from shardplan.records import Plan
from shardplan.search.decision_matrix import Row, in_words

_FITS = {"yes": "[green]fits[/]", "maybe": "[yellow]may fit, or not[/]", "no": "[red]does not fit[/]"}


def matrix_table(rows: Sequence[Row]) -> Table:
    table = Table(box=box.SIMPLE, title="the decision matrix, planned", caption=_CAPTION)
    for header in ("job", "the page's choice", "the fastest that fits"):
        table.add_column(header)
    for row in rows:
        s = row.scenario
        table.add_row(f"{s.model}\n{s.gpus} GPUs, {s.machine}", f"{s.words}\n{_memory(row.page)}", _best(row))
    return table


_CAPTION = "GB (1e9 bytes) of a GPU: needed, of those there are; 2048 tokens a sequence. The page's choice at its best"


def _memory(plan: Plan) -> str:
    needed, there = plan.memory.device_bytes[0] / 1e9, plan.setup.machine.memory_bytes / 1e9
    return f"{_FITS[plan.fits]}: {needed:.0f} of {there:.0f} GB"


def _best(row: Row) -> str:
    if row.best is None:
        return "nothing"
    gain = f", {row.gain:.1f} x the page's" if row.gain else ""
    return f"{in_words(row.best.setup)}\n{row.best.speed.tokens_per_s:,.0f} tokens/s a GPU{gain}"


def exercises_table(exercises: Sequence[Exercise]) -> Table:
    """Return a table of the questions, the planner's findings and the answers in words."""
    table = Table(box=box.SIMPLE, title="the page's exercises, answered", show_header=False)
    table.add_column("", ratio=1)
    for number, exercise in enumerate(exercises, 1):
        found = [f"{what}: {_listed(values)}" for what, values in exercise.found.items()]
        table.add_row("\n".join([f"[bold]{number}. {exercise.question}[/]", *found, f"[dim]{exercise.answer}[/]"]))
    return table


def _listed(values: Findings) -> str:
    return "; ".join(f"{when} {claim_words(value)}" for when, value in values.items())
