"""The results of `bench interconnect` as tables."""

from rich import box
from rich.console import Console
from rich.table import Table

from shardbench.published_collectives import RANGES, summary


def show(result: dict) -> None:
    console = Console(width=max(120, Console().width))
    console.print(_truth(result["truth"]))
    for curve in result["buckets"]:
        console.print(_buckets(curve))
    law = "scaling law: seconds of the imitated step on the machine itself, from runs so many times as slow"
    console.print(_rows(law, result["scaling_law"], "{:.5f}"))
    console.print(_rows("overlap: how much of what could be hidden is", result["overlap"], "{:.1%}"))
    console.print(_rows("FSDP2's prefetch in backward, seconds", result["prefetch"], "{:.3f}"))
    console.print(_rows("HYBRID_SHARD where the link between nodes is slow, a rank", result["hybrid"], "{:.4g}"))
    t = result["overhead"]
    console.print(
        f"infinitely fast, beside gloo: {t['ratio']:.3f} ({t['low']:.3f} to {t['high']:.3f}, "
        f"{t['confidence']:.0%} sure, {t['pairs']} pairs)"
    )
    equal = [row["what"] for row in result["unchanged"] if row["equal"]]
    console.print(f"losses equal to gloo's to the bit: {', '.join(equal)}")
    if different := [row["what"] for row in result["unchanged"] if not row["equal"]]:
        console.print(f"DIFFERENT from gloo's: {', '.join(different)}")
    show_published(result["published"], console)


def show_published(rows: list[dict], console: Console) -> None:
    """Print the errors by table and range, of tables that were not fitted and of the others, with NCCL's own."""
    for used, words in (("predicted", "tables that were not fitted"), ("fit", "tables that constants were fitted on")):
        mine = [row for row in rows if row["used"] == used]
        title = f"NCCL's collectives, {words}: middle error of the model (of NCCL's own estimate)"
        table = _table(title, "nodes x GPUs", *RANGES)
        for what in dict.fromkeys(row["what"] for row in mine):
            cells = {row["range"]: f"{row['off']:.0%} ({row['tuner_off']:.0%})" for row in mine if row["what"] == what}
            table.add_row(what, *(cells.get(name, "") for name in RANGES))
        console.print(table)
    for where, off in summary(rows).items():
        console.print(
            f"{where}, {off['n']} times that were not fitted: middle error {off['off']:.1%}, "
            f"of NCCL's own estimate {off['tuner_off']:.1%}"
        )


def _table(title: str, *headers: str) -> Table:
    table = Table(title=title, box=box.SIMPLE)
    for i, header in enumerate(headers):
        table.add_column(header, justify="right" if i else "left", no_wrap=True)
    return table


def _truth(rows: list[dict]) -> Table:
    """Return a table with the ratio farthest from 1 over all sizes, for each kind that the algorithm changes."""
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    title = "a collective alone: measured / formula, of the size where they differ most"
    table = _table(title, "topology", "algorithm", *kinds)
    for topology, algorithm in dict.fromkeys((row["topology"], row["algorithm"]) for row in rows):
        mine = [row for row in rows if (row["topology"], row["algorithm"]) == (topology, algorithm)]
        ratios = [[row["ratio"] for row in mine if row["kind"] == kind] for kind in kinds]
        table.add_row(topology, algorithm, *(f"{max(x, key=lambda r: abs(r - 1)):.3f}" if x else "" for x in ratios))
    return table


def _buckets(curve: dict) -> Table:
    headers = ("bucket_cap KiB", "there, MiB", "predicted s", "measured s", "ratio")
    table = _table(f"torch's DDP, {curve['imitated']}", *headers)
    for i, row in enumerate(curve["rows"]):
        marks = [mark for mark in ("predicted", "measured") if curve[f"{mark}_optimum"] == i]
        cells = (f"{row[mark]:.3f}{' <' if mark in marks else '  '}" for mark in ("predicted", "measured"))
        caps = f"{row['cap_bytes'] / 2**10:g}", f"{row['real_cap_bytes'] / 2**20:.1f}"
        table.add_row(*caps, *cells, f"{row['ratio']:.3f}")
    return table


def _rows(title: str, rows: list[dict], form: str) -> Table:
    table = _table(title, "", "predicted", "measured", "ratio")
    for row in rows:
        table.add_row(row["what"], form.format(row["predicted"]), form.format(row["measured"]), f"{row['ratio']:.3f}")
    return table
