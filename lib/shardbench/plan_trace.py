"""The closed form compared with a trace without hardware: two ways to the peak of models of 1B to 405B parameters.

The trace runs the real FSDP2 or DDP, and uses no formula. If the two differ, one of them is wrong. Each row has both by
category, and the largest tensors at the trace's peak.
"""

import time
from collections.abc import Iterable, Iterator
from itertools import cycle, product
from statistics import median

from rich.console import Console
from rich.progress import track

from shardbench.plan_table import setup_of, show_bytes, words
from shardlab.model import PRESETS
from shardplan.memory import memory_plan
from shardplan.records import MemoryPlan
from shardplan.trace import Trace, trace_memory

MODELS = ("1B", "8B", "70B", "405B")
RANKS = (8, 64, 512)
GOAL = 0.05  # largest difference between the two, as a share
TWO_MICRO_BATCHES = {"accumulation": 2, "seq_len": 4096}
SPECIAL = (  # model, ranks, strategy
    ("8B", 64, {"sharding": "SHARD_GRAD_OP"}),
    ("8B", 64, {"shard_size": 8}),
    ("8B", 64, {"shard_size": 8, "sharding": "SHARD_GRAD_OP", "precision": "bf16-mixed-bf16-reduce"}),
    ("70B", 64, {"recompute": "full", "recompute_every": 2}),
    ("8B", 8, TWO_MICRO_BATCHES),
    ("8B", 8, TWO_MICRO_BATCHES | {"accumulate_unsharded": True}),
    ("8B", 8, {"precision": "bf16-autocast"}),
    ("8B", 8, {"precision": "bf16-autocast", "recompute": "full"}),
    ("8B", 8, {"precision": "bf16"}),
    ("8B", 8, {"precision": "bf16-master", "seq_len": 512, "optimizer_kernel": "forloop"}),
    ("8B", 8, {"optimizer_kernel": "fused", "seq_len": 512}),
    ("8B", 8, {"optimizer": "momentum", "seq_len": 512}),
    ("8B", 8, {"wrap": "whole", "recompute": "full"}),
    ("8B", 8, {"attention": "math", "seq_len": 4096}),
    ("1B", 1, {"sharding": "NONE", "precision": "bf16-autocast"}),
    ("1B", 8, {"sharding": "DDP", "precision": "bf16-autocast"}),
    ("1B", 8, {"sharding": "DDP", "precision": "fp32", "gradient_as_bucket_view": True, "recompute": "full"}),
    ("1B", 8, {"sharding": "DDP+ZERO_1", "precision": "fp32"}),
    ("1B", 8, {"sharding": "ZERO_1", "precision": "fp32"}),
    ("1B", 8, {"sharding": "ZERO_2", "precision": "fp32"}),
)


def configurations() -> Iterator[dict]:
    """Yield all combinations of model, sequence, precision, recomputation (ranks in turn), then the special cases."""
    ranks = cycle(RANKS)
    for recompute, model, seq_len, precision in product(
        ("none", "selective", "products", "full"), MODELS, (2048, 8192), ("bf16-mixed", "fp32")
    ):
        yield _one(model, next(ranks), seq_len=seq_len, precision=precision, recompute=recompute)
    for model, n_ranks, strategy in SPECIAL:
        yield _one(model, n_ranks, **strategy)


def _one(model: str, ranks: int, **strategy) -> dict:
    return {"model": model, "ranks": ranks, "strategy": strategy}


def run(only: Iterable[dict] | None = None) -> list[dict]:
    """Return a row for each configuration: traced and planned bytes (also by category), ratio, and peaks' places."""
    wanted = list(configurations() if only is None else only)
    return [_row(c) for c in track(wanted, "tracing", console=Console(stderr=True), transient=True)]


def _row(configuration: dict) -> dict:
    setup = setup_of(configuration, PRESETS)
    trace = trace_memory(setup)
    began = time.perf_counter()
    plan = memory_plan(setup, on_gpu=False)  # a trace uses CPU kernels, unless there is a GPU
    return {
        **configuration,
        "planned_bytes": plan.allocated_bytes,
        "traced_bytes": trace.allocated_bytes,
        "ratio": plan.allocated_bytes / trace.allocated_bytes,
        "planned": plan.peak.by_category(),
        "traced": trace.peak.by_category(),
        "planned_where": plan.peak.name,
        "traced_where": trace.peak.name,
        "worst_part": _worst_part(plan, trace),
        "largest": [f"{t.category}: {t.words}, {t.n_bytes / 2**30:.2f} GiB" for t in trace.largest(5)],
        "blocks_traced": list(trace.depths),
        "plan_s": time.perf_counter() - began,
        "trace_s": trace.seconds,
    }


def _worst_part(plan: MemoryPlan, trace: Trace) -> tuple[str, float]:
    """Return the part of the step with the worst agreement, not only at the peak, and its plan / trace."""
    planned: dict[str, float] = {}
    for m in plan.moments:
        name = m.part or m.name
        planned[name] = max(planned.get(name, 0), m.n_bytes)
    ratios = {m.name: planned.get(m.name, 0) / m.n_bytes for m in trace.moments}
    worst = max(ratios, key=lambda name: abs(ratios[name] - 1))
    return worst, ratios[worst]


def show(rows: list[dict]) -> None:
    columns = ("model", "GPUs", "strategy", "plan", "trace", "ratio", "peak, in the trace", "worst part")
    cells = ((_cells(row), row["ratio"]) for row in rows)
    show_bytes("peak of a rank: closed form / trace, GiB", columns, cells, GOAL, _summary(rows), 120)


def _cells(row: dict) -> list[str]:
    sizes = (f"{row[name] / 2**30:.2f}" for name in ("planned_bytes", "traced_bytes"))
    who = row["model"], str(row["ranks"]), words(row["strategy"])
    return [*who, *sizes, f"{row['ratio']:.4f}", row["traced_where"], f"{row['worst_part'][1]:.4f}"]


def _summary(rows: list[dict]) -> str:
    off = [abs(r["ratio"] - 1) for r in rows]
    seconds = (f"{median(r[name] for r in rows):.2g} s" for name in ("trace_s", "plan_s"))
    return (
        f"{sum(x <= GOAL for x in off)} of {len(rows)} within {GOAL:.0%}; "
        f"median {median(off):.2%}, worst {max(off):.2%}; " + "a trace takes {}, a plan {}".format(*seconds)
    )
