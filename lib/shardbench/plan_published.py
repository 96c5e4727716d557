"""The planner compared with published measurements: a prediction for every published run, hits and misses alike.

A row is one figure of one run. If a run has several figures for the same time (tokens/s, MFU), the first is compared.

The row of a blind or mended run has the forecast that was entered before the run's figures were, beside today's
prediction.

[Note: conventions] Speeds are compared as rates, so that a ratio above 1 is optimistic whatever the source publishes.
A source's FLOP/s count the full attention matrix. With recomputation, they count a whole forward once more (Megatron's
formula), although the last product of a block need not be recomputed. Memory that a source calls reserved is compared
with the middle of the planner's range; the ends of the range are in the row.
"""

from collections.abc import Iterable
from itertools import groupby
from statistics import median

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from shardplan import flops
from shardplan.api import figures_of
from shardplan.memory import memory_plan, states
from shardplan.planned_job import Setup
from shardplan.published import SPEED, Run, runs
from shardplan.records import MemoryPlan, SpeedPlan
from shardplan.speed import speed_plan
from shardplan.stage_parameters import stages

GIB, GB, TERA = 1 << 30, 1e9, 1e12
GOALS = {"memory": 0.10, "speed": 0.15, "fits": 0.0}  # goals for |ratio - 1|, set for torchtitan's runs


def run(only: str = "") -> list[dict]:
    """Return the rows of all runs whose id begins with `only`. The predictions do not use the published figures."""
    chosen = [r for r in runs() if r.id.startswith(only)]
    return [row for r in track(chosen, "planning published runs", transient=True) for row in rows_of(r)]


def rows_of(published: Run) -> list[dict]:
    setup = published.setup
    return [row for compare in (_memory, _fits, _speed) for row in compare(published, setup)]


def _memory(r: Run, setup: Setup) -> Iterable[dict]:
    for figure, unit in (("memory_gib", GIB), ("memory_gb", GB)):
        if figure in r.published:
            low, high = (n_bytes / unit for n_bytes in _bytes_of(r, setup, memory_plan(setup)))
            row = _row(r, "memory", figure, r.published[figure], (low + high) / 2, r.forecast.get(figure))
            yield row | {"range": [low, high]}


def _fits(r: Run, setup: Setup) -> Iterable[dict]:
    """Yield a row on whether the run fits. A run with a published speed did fit, even if its memory is unpublished."""
    if r.memory_of != "states":
        planned = figures_of(setup)
        low, high = planned.memory.device_bytes
        row = _row(r, "fits", "fits", r.published.get("fits", True), planned.fits != "no")
        yield row | {"range": [low / GIB, high / GIB], "capacity": setup.machine.memory_bytes / GIB}


def _bytes_of(r: Run, setup: Setup, plan: MemoryPlan) -> tuple[float, float]:
    """Return the (low, high) bytes of what the source calls memory."""
    if r.memory_of == "states":
        n_bytes = max(_states(setup, stage) for stage in stages(setup))
        return n_bytes, n_bytes
    return plan.reserved_bytes if r.memory_of == "reserved" else (plan.allocated_bytes, plan.allocated_bytes)


def _states(setup: Setup, stage) -> float:
    terms = (states.parameters(setup, stage), states.gradients(setup, stage), *states.optimizer_states(setup, stage))
    return sum(term.n_bytes for term in terms)


def _speed(r: Run, setup: Setup) -> Iterable[dict]:
    figure = next((name for name in SPEED if name in r.published), None)
    if figure:
        plan = speed_plan(setup)
        published, predicted = r.published[figure], _rate(figure, setup, plan)
        forecast = r.forecast.get(figure)
        if figure == "step_s":
            figure, published, forecast = "steps_per_s", 1 / published, 1 / forecast if forecast else None
        row = _row(r, "speed", figure, published, predicted, forecast)
        yield row | {"range": [predicted * plan.step_s / step_s for step_s in reversed(plan.range_s)]}


def _rate(figure: str, setup: Setup, plan: SpeedPlan) -> float:
    """Return the predicted speed in the unit of `figure`. See [Note: conventions]."""
    return {
        "tokens_per_s": lambda: plan.tokens_per_s,
        "step_s": lambda: 1 / plan.step_s,
        "mfu": lambda: flops.model_flops(setup) / plan.step_s / plan.peak_flops,
        "hfu": lambda: _with_a_forward_more(setup) / plan.step_s / plan.peak_flops,
        "model_tflops": lambda: flops.model_flops(setup) / plan.step_s / TERA,
        "hardware_tflops": lambda: _with_a_forward_more(setup) / plan.step_s / TERA,
    }[figure]()


def _with_a_forward_more(setup: Setup) -> float:
    s = setup.strategy
    forward = sum(product.flops for product in flops.block_products(setup)) + flops.attention_flops(setup)
    blocks = s.accumulation * setup.shape.n_layers / s.pipeline
    return flops.model_flops(setup) + (blocks * forward if s.recompute == "full" else 0.0)


def _row(r: Run, what: str, figure: str, published, predicted, forecast: float | None = None) -> dict:
    about = "memory" if what == "fits" else what
    same = ("table", "source", "read", "model", "machine", "world_size", "strategy")
    return {
        "run": r.id,
        **{name: getattr(r, name) for name in same},
        "what": what,
        "figure": figure,
        "published": published,
        "predicted": predicted,
        "ratio": float(predicted == published) if what == "fits" else predicted / published,
        "forecast": forecast,
        "forecast_ratio": forecast / published if forecast else None,
        "used": r.used,
        "outside": (r.outside or {}).get(about, ""),
        "assumed": r.assumed,
        "differs": r.differs.get(about, ""),
    }


def summary(rows: list[dict]) -> list[dict]:
    """Return for each table and kind of figure the number, median and extremes of the ratios, and why they differ.

    The ratio of a blind or mended run is that of its forecast.
    """
    found = []
    for key, group in groupby(sorted(rows, key=_kind), key=_kind):
        of_kind = list(group)
        table, what, used, outside = key
        ratios = sorted(row["forecast_ratio"] or row["ratio"] for row in of_kind)
        within = sum(abs(ratio - 1) <= GOALS[what] for ratio in ratios)
        extremes = {"n": len(ratios), "within": within, "median": median(ratios), "low": ratios[0], "high": ratios[-1]}
        words = {"outside": outside, "differs": of_kind[0]["differs"]}
        found.append({"table": table, "what": what, "used": used, **extremes, **words})
    return found


def _kind(row: dict) -> tuple[str, str, str, str]:
    return row["table"], row["what"], row["used"], row["outside"]


def show(rows: list[dict]) -> None:
    console = Console()
    for what, goal in GOALS.items():
        title = (
            f"{what}: predicted / published; hits are within {goal:.0%}" if goal else "does it fit? published: it did"
        )
        table = Table("runs", "used", "hits", "median", "range", "why it differs", title=title, box=box.SIMPLE)
        for line in summary([row for row in rows if row["what"] == what]):
            spread = f"{line['low']:.2f} - {line['high']:.2f}" if line["n"] > 1 else ""
            used = "outside" if line["outside"] else line["used"]
            why = "; ".join(filter(None, (line["outside"], line["differs"])))
            table.add_row(line["table"], used, f"{line['within']}/{line['n']}", f"{line['median']:.2f}", spread, why)
        console.print(table)
