"""The results of `bench parallel` as tables."""

from rich import box
from rich.console import Console
from rich.table import Table

REMEDY = "pip install --no-build-isolation -e '.[deepspeed]'"
STATES = {"parameters": "parameters", "gradients": "gradients", "optimizer_states": "optimizer"}


def show(result: dict) -> None:
    console = Console(width=max(120, Console().width))
    tokens = f"{result['micro_batch']} x {result['seq_len']} tokens"
    setting = f"{result['model']}, {result['world_size']} ranks, {tokens} each"
    if rows := result["rows"]:
        console.print(_speed(rows, f"a training step: ours / torch's; {setting}", result["pairs"]))
        console.print(_held(rows))
        console.print(_sent(rows))
    if result["deepspeed"] is None:
        console.print(f"DeepSpeed: not installed ({REMEDY})", markup=False)
    else:
        console.print(_deepspeed(result["deepspeed"], f"beside DeepSpeed: ours / its; {setting}"))
    console.print(_backend(result["backend"]))


def _speed(rows: list[dict], title: str, pairs: int) -> Table:
    caption = f"step: median of {pairs} pairs (and the interval that holds it, 95% sure)"
    table = _table(title, caption, "engine", "step", "ms", "losses differ", "broken promises")
    for row in rows:
        broken = ", ".join(row["ours"]["broken"]) or "none"
        table.add_row(row["engine"], _ratio(row), _ms(row), _difference(row), broken)
    return table


def _held(rows: list[dict]) -> Table:
    table = _table("held by a rank: ours / formula / torch's, MiB", "", "engine", *STATES.values())
    for row in rows:
        table.add_row(row["engine"], *(_three(row, lambda who, name=name: who["held"][name], name) for name in STATES))
    return table


def _sent(rows: list[dict]) -> Table:
    title = "sent by a rank in a step, and held at its peak: ours / formula / torch's, MiB"
    caption = "peak of states: without activations and temporaries; its formula is an upper bound"
    table = _table(title, caption, "engine", "wire", "peak of states", "peak")
    for row in rows:
        wire, states = (
            _three(row, lambda who, name=name: who[name], name) for name in ("wire_bytes", "peak_of_states")
        )
        peak = f"{_mib(row['ours']['peak_bytes'])} / {_mib(row['theirs']['peak_bytes'])}"
        table.add_row(row["engine"], wire, states, peak)
    return table


def _deepspeed(rows: list[dict], title: str) -> Table:
    table = _table(title, "held: all bytes between steps", "", "beside our", "step", "ms", "losses differ", "held MiB")
    for row in rows:
        held = f"{_mib(row['ours']['held_bytes'])} / {_mib(row['theirs']['held_bytes'])}"
        table.add_row(row["engine"], row["beside"], _ratio(row), _ms(row), _difference(row), held)
    return table


def _backend(comparisons: dict[str, dict]) -> Table:
    table = _table("the backend's collectives, on the model's bytes", "by the ring's formulas: 0.5, 0.5, 1", "", "time")
    for name, t in comparisons.items():
        table.add_row(name, _ratio({"time": t}))
    return table


def _table(title: str, caption: str, *headers: str) -> Table:
    table = Table(title=title, caption=caption, box=box.SIMPLE)
    for header in headers:
        table.add_column(header, no_wrap=True)
    return table


def _ratio(row: dict) -> str:
    t = row["time"]
    return f"{t['ratio']:.2f} ({t['low']:.2f} to {t['high']:.2f})"


def _ms(row: dict) -> str:
    return f"{row['time']['a_s'] * 1e3:.0f} / {row['time']['b_s'] * 1e3:.0f}"


def _difference(row: dict) -> str:
    return f"{row['max_loss_difference']:.0e}" if row["max_loss_difference"] else "0"


def _three(row: dict, read, name: str) -> str:
    return " / ".join(map(_mib, (read(row["ours"]), row["formula"]["ours"][name], read(row["theirs"]))))


def _mib(n_bytes: float) -> str:
    return f"{n_bytes / 2**20:.2f}"
