"""Tables of predicted and measured bytes."""

from collections.abc import Sequence
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table

LEFT = {"model", "strategy", "by", "peak, in the plan"}


def table(title: str, columns: Sequence[str]) -> Table:
    made = Table(title=title, box=box.SIMPLE_HEAD, header_style="bold")
    for column in columns:
        made.add_column(column, justify="left" if column in LEFT else "right")
    return made


def show_bytes(title: str, rows: list[dict], goal: float, unit: str, default: dict) -> None:
    """Print the rows as a table in MiB or GiB. A strategy is shown without the values in `default`."""
    each = {"MiB": 2**20, "GiB": 2**30}[unit]
    made = table(title, ("model", "ranks", "by", "strategy", "plan", "measured", "ratio", "peak, in the plan"))
    for row in rows:
        sizes = (f"{row[name] / each:.2f}" for name in ("predicted_bytes", "measured_bytes"))
        strategy = {name: value for name, value in row["strategy"].items() if default.get(name) != value}
        who = row["model"], str(row["ranks"]), row.get("library", "torch"), words(strategy)
        style = "" if abs(row["ratio"] - 1) <= goal else "bold red"
        made.add_row(*who, *sizes, f"{row['ratio']:.4f}", row["predicted_where"], style=style)
    made.caption = summary([row["ratio"] for row in rows], goal)
    Console(width=max(140, Console().width)).print(made)


def summary(ratios: list[float], goal: float) -> str:
    off = [abs(ratio - 1) for ratio in ratios]
    if not off:
        return "nothing was measured"
    within = sum(x <= goal for x in off)
    return f"{within} of {len(off)} within {goal:.0%}; median {median(off):.3%}, worst {max(off):.2%}"


def words(strategy: dict) -> str:
    return ", ".join(value if isinstance(value, str) else f"{name}={value}" for name, value in strategy.items())
