"""The pages' decision matrix, planned: whether their choice fits, and the fastest plan that fits."""

from rich import box
from rich.console import Console
from rich.table import Table

from shardplan.search.decision_matrix import Row, in_words, matrix


def run() -> list[dict]:
    """Return a row for each of the six jobs. `best` is None if nothing fits."""
    return [_row(row) for row in matrix()]


def _row(row: Row) -> dict:
    s, page, best = row.scenario, row.page, row.best
    return {
        "job": f"{s.model} on {s.gpus} GPUs, {s.machine}",
        "page_says": s.words,
        "fits": page.fits,
        "needed_bytes": page.memory.device_bytes,
        "there_bytes": page.setup.machine.memory_bytes,
        "best": in_words(best.setup) if best else None,
        "best_tokens_per_s_of_a_gpu": best.speed.tokens_per_s if best else None,
        "times_as_fast": row.gain,
    }


def show(rows: list[dict]) -> None:
    table = Table(box=box.SIMPLE, title="the decision matrix: GB of a GPU, from and to, and of those there are")
    for header in ("job", "the page's choice", "fits", "needed", "there", "the fastest that fits", "times as fast"):
        table.add_column(header)
    for r in rows:
        low, high = (n / 1e9 for n in r["needed_bytes"])
        gain = f"{r['times_as_fast']:.2f}" if r["times_as_fast"] else ""
        sizes = f"{low:.0f} to {high:.0f}", f"{r['there_bytes'] / 1e9:.0f}"
        table.add_row(r["job"], r["page_says"], r["fits"], *sizes, r["best"] or "nothing", gain)
    Console(width=max(140, Console().width)).print(table)
