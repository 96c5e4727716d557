"""A table of predicted and found bytes; rows that are farther off than the goal are red."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from shardplan.planned_job import Setup
from shardplan.shape import Shape
from shardplan.strategy import Strategy
from shardsim.machines import machine

LEFT = {"model", "strategy", "by", "peak, in the plan", "peak, in the trace", "worst part"}


def setup_of(configuration: dict, models: dict) -> Setup:
    """Return the setup of a configuration: model (a key of `models`), ranks, and what differs from the defaults."""
    shape = Shape.of(configuration["model"], models[configuration["model"]])
    return Setup(shape, machine("dgx-h100"), configuration["ranks"], Strategy(**configuration["strategy"]))


def show_bytes(
    title: str, columns: Sequence[str], rows: Iterable[tuple[list[str], float]], goal: float, caption: str, width: int
) -> None:
    """Print a row of cells for each ratio, at least `width` wide."""
    table = Table(title=title, box=box.SIMPLE_HEAD, header_style="bold", caption=caption)
    for column in columns:
        table.add_column(column, justify="left" if column in LEFT else "right")
    for cells, ratio in rows:
        table.add_row(*cells, style="" if abs(ratio - 1) <= goal else "bold red")
    Console(width=max(width, Console().width)).print(table)


def words(strategy: dict) -> str:
    return ", ".join(value if isinstance(value, str) else f"{name}={value}" for name, value in strategy.items())
