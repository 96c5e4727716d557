"""The closed form compared with real ranks: peak bytes of a step on CPU ranks, by category, for many configurations.

The plan is for PyTorch's engines. ZeRO-1 and ZeRO-2, which PyTorch does not have, are the course's own. If a row's
library is "ours" and PyTorch has the same engine, the row shows by how much ours differs from the plan: SHARD_GRAD_OP
holds less (see `shardplan.memory.gathering`).

Each configuration is trained for two steps; a MemoryTracker watches the third on every rank, and the fullest rank
counts. The models are small, with shapes that produce every kind of peak: in forward, at the logits of a large
vocabulary, in the backward of a block, while gradients are reduced, in the optimizer.
"""

from collections.abc import Iterable
from functools import partial
from statistics import median

from shardbench import plan_table
from shardbench.engines import OURS, TORCH
from shardbench.plan_ranks import peak
from shardlab import launch
from shardlab.model import ModelConfig, preset
from shardplan.memory import memory_plan

MODELS = {
    "1M": preset("1M"),
    "3M": preset("3M"),
    "tiny": ModelConfig(256, 64, 4, 4, 2, 192, 256),  # for 16-bit dtypes, which this CPU computes slowly
    "deep": ModelConfig(256, 64, 16, 4, 2, 192, 256),
    "wide vocabulary": ModelConfig(8192, 128, 2, 4, 2, 384, 512),
    "tied vocabulary": ModelConfig(8192, 128, 2, 4, 2, 384, 512, tied=True),
    "uneven": ModelConfig(257, 72, 3, 4, 2, 190, 256),  # its rows do not divide evenly among 2 or 4 ranks
}
GOAL = 0.03  # largest difference between prediction and measurement, as a share
LIBRARIES = {"torch": TORCH, "ours": OURS}
FP32 = {"precision": "fp32", "optimizer_kernel": "forloop", "micro_batch": 2, "seq_len": 64}
BF16 = FP32 | {"precision": "bf16-mixed", "micro_batch": 1}
AUTOCAST = FP32 | {"precision": "bf16-autocast", "micro_batch": 1}


def configurations() -> list[dict]:
    """Return all configurations: model, ranks, library, and the differences from the default strategy."""
    kinds = (_shardings, _precisions, _recomputations, _accumulations, _shapes, _optimizers, _one_rank, _quantised)
    return [configuration for kind in kinds for configuration in kind()]


def _shardings() -> Iterable[dict]:
    for ranks in (2, 4):
        for sharding in ("FULL_SHARD", "SHARD_GRAD_OP", "DDP", "DDP+ZERO_1"):
            yield _one("1M", ranks, sharding=sharding)
        for sharding in ("ZERO_1", "ZERO_2"):
            yield _one("1M", ranks, "ours", sharding=sharding, bucket_cap_mb=0.5)
    yield _one("1M", 2, sharding="DDP", gradient_as_bucket_view=True)
    yield _one("1M", 4, sharding="FULL_SHARD", shard_size=2)
    yield _one("1M", 4, sharding="SHARD_GRAD_OP", shard_size=2)
    yield _one("1M", 2, sharding="FULL_SHARD", wrap="whole")
    for sharding in ("FULL_SHARD", "SHARD_GRAD_OP", "DDP"):
        yield _one("1M", 2, "ours", sharding=sharding)


def _precisions() -> Iterable[dict]:
    for precision in ("bf16-mixed", "bf16-mixed-bf16-reduce", "bf16-autocast", "bf16-master", "bf16"):
        yield _one("tiny", 2, sharding="FULL_SHARD", **BF16 | {"precision": precision})
    yield _one("tiny", 4, sharding="FULL_SHARD", shard_size=2, **BF16 | {"precision": "bf16-mixed-bf16-reduce"})
    yield _one("tiny", 2, sharding="SHARD_GRAD_OP", **BF16)
    yield _one("tiny", 2, sharding="DDP", **AUTOCAST)
    yield _one("tiny", 2, "ours", sharding="ZERO_2", bucket_cap_mb=0.1, **AUTOCAST)
    yield _one("tiny", 2, sharding="DDP", **BF16 | {"precision": "bf16"})


def _recomputations() -> Iterable[dict]:
    for recompute in ("full", "products", "selective"):
        yield _one("1M", 2, sharding="FULL_SHARD", recompute=recompute)
    yield _one("1M", 2, sharding="DDP", recompute="full")
    yield _one("1M", 2, sharding="FULL_SHARD", recompute="full", recompute_every=2)
    yield _one("deep", 2, sharding="DDP", recompute="full", recompute_every=2, micro_batch=4)
    for recompute in ("full", "products", "selective"):
        yield _one("tiny", 2, sharding="FULL_SHARD", recompute=recompute, **BF16)
    yield _one("tiny", 2, sharding="FULL_SHARD", recompute="full", **AUTOCAST)


def _accumulations() -> Iterable[dict]:
    for sharding in ("FULL_SHARD", "DDP"):
        for unsharded in (False, True):
            yield _one("1M", 2, sharding=sharding, accumulation=2, accumulate_unsharded=unsharded)
    for precision in ("fp32", "bf16-mixed"):
        twice = {"accumulation": 2, "accumulate_unsharded": True, "wrap": "whole"}
        yield _one("tiny", 2, sharding="FULL_SHARD", **BF16 | {"precision": precision} | twice)
    yield _one("1M", 2, "ours", sharding="ZERO_1", accumulation=2, bucket_cap_mb=0.5)
    for unsharded in (False, True):
        yield _one(
            "1M", 2, "ours", sharding="ZERO_2", accumulation=2, accumulate_unsharded=unsharded, bucket_cap_mb=0.5
        )
        yield _one(
            "1M", 2, sharding="DDP", accumulation=2, accumulate_unsharded=unsharded, gradient_as_bucket_view=True
        )
        yield _one("tiny", 2, sharding="FULL_SHARD", accumulation=2, accumulate_unsharded=unsharded, **BF16)


def _shapes() -> Iterable[dict]:
    for vocabulary in ("wide vocabulary", "tied vocabulary"):
        for sharding in ("FULL_SHARD", "DDP"):
            yield _one(vocabulary, 2, sharding=sharding)
    yield _one("wide vocabulary", 4, sharding="FULL_SHARD", seq_len=256)
    yield _one("wide vocabulary", 2, "ours", sharding="ZERO_2", bucket_cap_mb=1.0)
    yield _one("tied vocabulary", 2, sharding="FULL_SHARD", **BF16)
    yield _one("tied vocabulary", 2, sharding="DDP", seq_len=2)
    yield _one("tied vocabulary", 1, sharding="NONE", seq_len=2)
    yield _one("tied vocabulary", 2, "ours", sharding="ZERO_2", bucket_cap_mb=1.0, seq_len=2)
    yield _one("3M", 2, sharding="FULL_SHARD", seq_len=8)
    yield _one("3M", 4, sharding="FULL_SHARD", seq_len=8)
    yield _one("3M", 2, sharding="DDP", seq_len=8)
    yield _one("3M", 2, sharding="SHARD_GRAD_OP", seq_len=2)
    yield _one("1M", 2, sharding="FULL_SHARD", seq_len=512, micro_batch=1)
    yield _one("deep", 4, sharding="FULL_SHARD")
    for ranks in (2, 4):
        yield _one("uneven", ranks, sharding="FULL_SHARD", seq_len=37)


def _optimizers() -> Iterable[dict]:
    short = {"seq_len": 8, "micro_batch": 1}
    for kernel in ("forloop", "foreach", "fused"):
        yield _one("3M", 2, sharding="DDP", optimizer_kernel=kernel, gradient_as_bucket_view=True, **short)
        yield _one("3M", 2, sharding="FULL_SHARD", optimizer_kernel=kernel, **short)
    for optimizer in ("momentum", "sgd"):
        yield _one("3M", 2, sharding="FULL_SHARD", optimizer=optimizer, **short)
    yield _one("3M", 2, sharding="FULL_SHARD", precision="bf16-master", **short)


def _one_rank() -> Iterable[dict]:
    """Yield configurations of one rank: a plain model, and FSDP, which gathers nothing but still makes copies."""
    for precision in ("fp32", "bf16", "bf16-autocast", "bf16-master"):
        yield _one("tiny", 1, sharding="NONE", **BF16 | {"precision": precision})
    for recompute in ("full", "products", "selective"):
        yield _one("1M", 1, sharding="NONE", recompute=recompute)
    yield _one("1M", 1, sharding="NONE", attention="math")
    yield _one("wide vocabulary", 1, sharding="NONE", accumulation=2)
    for precision in ("fp32", "bf16-mixed"):
        yield _one("tiny", 1, sharding="FULL_SHARD", **BF16 | {"precision": precision})


def _quantised() -> Iterable[dict]:
    """Yield configurations with 8-bit optimizer states, and with QLoRA."""
    short = {"optimizer": "adamw-8bit", "seq_len": 8, "micro_batch": 1}
    yield _one("3M", 2, sharding="DDP", gradient_as_bucket_view=True, **short)
    yield _one("3M", 2, sharding="FULL_SHARD", **short)
    for sharding in ("FULL_SHARD", "DDP"):
        yield _one("3M", 2, sharding=sharding, lora_rank=4, base_4bit=True)


def _one(model: str, ranks: int, library: str = "torch", **strategy) -> dict:
    return {"model": model, "ranks": ranks, "library": library, "strategy": FP32 | strategy}


setup_of = partial(plan_table.setup_of, models=MODELS)


# Run


def run(only: Iterable[dict] | None = None) -> list[dict]:
    """Return a row for each configuration: predicted and measured bytes (also by category), ratio, and peak's place.

    All configurations with the same number of ranks run in one launch.
    """
    wanted = list(configurations() if only is None else only)
    rows = {}
    for ranks in sorted({c["ranks"] for c in wanted}):
        mine = [(i, c) for i, c in enumerate(wanted) if c["ranks"] == ranks]
        results = launch(_measure, ranks, [c for _, c in mine], timeout_s=900)
        rows |= {i: _row(c, [rank[j] for rank in results]) for j, (i, c) in enumerate(mine)}
    return [rows[i] for i in range(len(wanted))]


def _measure(wanted: list[dict]) -> list:
    return [peak(setup_of(c), LIBRARIES[c["library"]]) for c in wanted]


def _row(configuration: dict, ranks: list) -> dict:
    fullest = max(ranks, key=lambda memory: memory.peak_bytes)
    plan = memory_plan(setup_of(configuration), on_gpu=False)
    return {
        **configuration,
        "predicted_bytes": plan.allocated_bytes,
        "measured_bytes": fullest.peak_bytes,
        "ratio": plan.allocated_bytes / fullest.peak_bytes,
        "predicted": plan.peak.by_category(),
        "measured": fullest.by_category(),
        "predicted_where": plan.peak.name,
        "measured_where": fullest.where,
    }


def show(rows: list[dict]) -> None:
    title = "peak of the fullest rank: closed form / real ranks on CPUs, MiB"
    columns = ("model", "ranks", "by", "strategy", "plan", "measured", "ratio", "peak, in the plan")
    plan_table.show_bytes(title, columns, ((_cells(row), row["ratio"]) for row in rows), GOAL, _summary(rows), 140)


def _cells(row: dict) -> list[str]:
    strategy = {name: value for name, value in row["strategy"].items() if FP32.get(name) != value}
    sizes = (f"{row[name] / 2**20:.2f}" for name in ("predicted_bytes", "measured_bytes"))
    who = row["model"], str(row["ranks"]), row["library"], plan_table.words(strategy)
    return [*who, *sizes, f"{row['ratio']:.4f}", row["predicted_where"]]


def _summary(rows: list[dict]) -> str:
    off = [abs(row["ratio"] - 1) for row in rows]
    if not off:
        return "nothing was measured"
    within = sum(x <= GOAL for x in off)
    return f"{within} of {len(off)} within {GOAL:.0%}; median {median(off):.3%}, worst {max(off):.2%}"
