"""A test of the simulated network: collectives and DDP on it, compared with real links that the kernel slows.

Four ranks run in four network namespaces, first around one switch, then as two nodes of two ranks with slow links
between them (see `namespaces`). They also run on a simulated network of the same bandwidth and the measured latency.

Messages are so large that bandwidth dominates: in a step of the ring a rank sends 0.5 MiB or more, which takes 8 ms at
500 Mb/s, against a latency of 0.1 ms. The test proves little about latency, which can't be added to the real links.
"""

import json
from dataclasses import asdict

from rich import box
from rich.console import Console
from rich.table import Table

from shardbench import environment, namespaces
from shardbench.shaped_ranks import Order, cases
from shardlab.measure.step_time import comparison

WITHIN = 0.15  # largest difference between a simulated time and the real one, as a share
TELLING = 0.05  # two times that differ by less, as a share, count as equal
MIB = 1 << 20
MBIT = 1e6


def run(
    rounds: int = 6,
    repeats: int = 3,
    sizes_bytes: tuple[int, ...] = (2 * MIB, 8 * MIB),
    caps_mb: tuple[float, ...] = (100.0, 4.0, 1.0, 0.25),
    timeout_s: float = 1200.0,
) -> dict:
    """Return a row for each call and size, and for DDP with each bucket cap: seconds on both sides, and their ratio.

    `holds` is True if all ratios of like with like are within WITHIN of 1, and no two times have the opposite order on
    real and on simulated links. `cannot_run` says what this machine lacks; there are no rows then.
    """
    result = {"benchmark": "shaped", "environment": environment(), "rounds": rounds, "within": WITHIN}
    if why := namespaces.missing():
        return result | {"cannot_run": why, "networks": [], "holds": None}
    orders = [
        Order(1, 4, 500 * MBIT, None, list(sizes_bytes), list(caps_mb), rounds, repeats),
        Order(2, 2, 500 * MBIT, 125 * MBIT, list(sizes_bytes), [], rounds, repeats),
    ]
    networks = [measured(order, timeout_s / len(orders)) for order in orders]
    return result | {"cannot_run": None, "networks": networks, "holds": all(n["holds"] for n in networks)}


def measured(order: Order, timeout_s: float) -> dict:
    """Run the order in namespaces. Return the order, the findings and the verdict."""
    words = json.dumps(asdict(order))
    found = json.loads(namespaces.run_inside("shardbench.shaped_ranks", words, timeout_s))
    return asdict(order) | judged(order, found)


def judged(order: Order, found: dict) -> dict:
    """Return rows of what `shaped_ranks.measure` found, the largest deviation from 1, and pairs in another order."""
    differs = {case.name: case.differs for case in cases(order)}
    rows = []
    for key, times in found["cases"].items():
        name, size = key.split("|")
        rows.append(_row(name, int(size), times, differs[name]))
    steps = [_row(f"DDP, {cap} MB buckets", None, times, "") for cap, times in found["ddp"].items()]
    groups = [[r for r in rows if r["bytes"] == size] for size in order.sizes_bytes] + [steps]
    swapped = [pair for group in groups for pair in out_of_order(group)]
    deviation = max(abs(r["ratio"] - 1) for r in rows + steps if not r["differs"])
    verdict = {"largest_deviation": deviation, "out_of_order": swapped, "holds": deviation <= WITHIN and not swapped}
    return {"latency_s": found["latency_s"], "tcp": found["tcp"], "rows": rows + steps} | verdict


def _row(name: str, size: int | None, times: dict[str, list[float]], differs: str) -> dict:
    c = comparison(times["simulated"], times["real"])
    interval = {"low": c.low, "high": c.high, "confidence": c.confidence}
    row = {"name": name, "bytes": size, "real_s": c.b_s, "simulated_s": c.a_s, "ratio": c.ratio, **interval}
    return row | {"differs": differs, "rounds": times}


def out_of_order(rows: list[dict]) -> list[list[str]]:
    """Return pairs of names: the first is clearly slower on real links and clearly faster on simulated ones."""
    like = [r for r in rows if not r["differs"]]
    pairs = [(a, b) for a in like for b in like if _slower(a, b, "real") and _slower(b, a, "simulated")]
    return [[a["name"], b["name"]] for a, b in pairs]


def _slower(a: dict, b: dict, side: str) -> bool:
    """Return True if `a` is slower than `b` in every round, by more than TELLING."""
    return all(x > (1 + TELLING) * y for x, y in zip(a["rounds"][side], b["rounds"][side], strict=True))


def show(result: dict) -> None:
    console = Console()
    if result["cannot_run"]:
        console.print(f"cannot run here: {result['cannot_run']}", markup=False)
        return
    for network in result["networks"]:
        console.print(_table(network, result))
    verdict = "holds" if result["holds"] else "DOES NOT HOLD"
    console.print(f"within {result['within']:.0%} of real links, and in the same order: {verdict}")


def _table(network: dict, result: dict) -> Table:
    latencies = ", ".join(f"{s * 1e6:.0f} us {where}" for where, s in network["latency_s"].items())
    table = Table(title=f"{_words(network)}\nlatency as measured: {latencies}", box=box.SIMPLE)
    table.caption = f"ratio: simulated / real, median of {result['rounds']} rounds (and the interval that holds it)"
    table.caption += "\n(sends): on real links our own algorithm out of sends; (sends, both): on simulated ones too"
    for header in ("", "MiB", "real ms", "sim. ms", "ratio"):
        table.add_column(header, no_wrap=True, justify="right" if header else "left")
    for row in network["rows"]:
        ratio = "not compared" if row["differs"] else f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
        size = "" if row["bytes"] is None else f"{row['bytes'] / MIB:g}"
        table.add_row(row["name"], size, f"{row['real_s'] * 1e3:.1f}", f"{row['simulated_s'] * 1e3:.1f}", ratio)
    for name, why in {row["name"]: row["differs"] for row in network["rows"] if row["differs"]}.items():
        table.caption += f"\n{name}: {why}"
    return table


def _words(network: dict) -> str:
    inside = f"{network['inside_bits_per_s'] / MBIT:g} Mb/s"
    if network["nodes"] == 1:
        return f"{network['ranks_per_node']} ranks, {inside}"
    between = f"{network['between_bits_per_s'] / MBIT:g} Mb/s"
    return f"{network['nodes']}x{network['ranks_per_node']} ranks, {inside} inside, {between} between"
