"""Plan what labs and lessons need of each GPU; `python -m grading.bench.planned_gpu_memory_table` prints the table.

The course has not run on these cards, so the planner stands in for them. A figure is the fullest GPU with the
allocator's largest reserve, CUDA's context of each rank, NCCL's buffers, and the notebook's own context. Labs 1, 6
and 8 run on the CPU on every tier, and so do most lessons. The others train models of a few million parameters.
"""

from grading.checks.lab2_ddp import on_ranks as lab2
from grading.checks.lab3_zero import on_ranks as lab3
from grading.checks.lab3_zero import step_and_buckets
from grading.checks.lab5_precision_recompute import on_ranks as lab5
from grading.checks.lab7_debug.memory_budgets import BUDGETS as LAB7
from shardlab.model import preset
from shardlab.tier import GIB, TIERS, Card, Tier, choose
from shardplan import tiers
from shardplan.api import setup_of
from shardplan.memory import memory_plan
from shardplan.memory.allocator import COMMUNICATOR_BYTES, CONTEXT_BYTES, WORKSPACES_BYTES, WORST
from shardplan.records import MemoryPlan
from shardplan.shape import Shape
from shardsim.hardware import GPUS

MIB = 1 << 20
REPLICATED = 4.5  # lab 3's given program, in times of the weights: four copies, and activations
IN_FLOAT32 = 2.5  # lab 5's reference, in times of the wide budget: nothing is recomputed, nothing is in 16 bits
CARDS = (
    ("T4", 1),
    ("T4", 2),
    ("T4", 4),
    ("A10", 1),
    ("L4", 4),
    ("RTX-4090", 2),
    ("A10G", 8),
    ("A100-40GB", 4),
    ("A100-80GB", 8),
    ("H100-80GB", 1),
    ("H100-80GB", 8),
    ("H200-141GB", 8),
    ("B200-180GB", 8),
)


def tier_of(card: str, n: int) -> Tier:
    """Return the tier that a machine with `n` of these cards gets."""
    gpu = GPUS[card]
    return TIERS[choose([Card(gpu.name, gpu.memory_bytes, gpu.capability)] * n)[0]]


def needs(tier: Tier) -> dict[str, float]:
    """Return the bytes that each lab and lesson needs of the fullest GPU: reference and right answers."""
    place, model = tiers.PLACES[tier.name], tiers.chosen(tier.name)
    psi, budget = (
        step_and_buckets.psi_bytes(tier.name),
        lab3.budget_bytes(tier.name, "peak", 5 / (4 * tier.world_size - 1)),
    )
    wide = lab5.BUDGETS[tier.name]["wide"][0]
    return {
        "lab 2": 2 * _planned(tier, **lab2.lap_shape(tier.name)),  # the race: the answer's ranks and the reference's
        "lab 3": _held(tier, max(REPLICATED * psi, budget)),
        "lab 4": tiers.needed_bytes(tier.name, model) * (1 - tiers.SPARE),
        "lab 5": _held(tier, IN_FLOAT32 * wide),
        "lab 7": _held(tier, LAB7[tier.name]["today_mib"] * MIB),
        "lesson 12": tiers.gpu_bytes(place, memory_plan(tiers.setup(place, model), every_block=False)),
        "other lessons": _planned(tier, "3M", 4, samples=16, seq_len=512),
    }


def _planned(tier: Tier, size: str, n_layers: int, samples: int, seq_len: int, **_) -> float:
    shape, n = Shape.of(size, preset(size, n_layers=n_layers)), tier.world_size
    sizes = {"sharding": "DDP", "precision": "fp32", "micro_batch": samples, "seq_len": seq_len}
    plan: MemoryPlan = memory_plan(setup_of(shape, f"T4 x {n}", n, **sizes), every_block=False)
    return tiers.gpu_bytes(tiers.PLACES[tier.name], plan)


def _held(tier: Tier, n_bytes: float) -> float:
    """Return the bytes of a GPU whose ranks hold at most `n_bytes` each."""
    shared = tier.world_size // tier.gpus
    context = CONTEXT_BYTES + WORKSPACES_BYTES + (COMMUNICATOR_BYTES if shared == 1 else 0)
    return shared * (WORST * n_bytes + context) + CONTEXT_BYTES


def table() -> str:
    """Return the table in Markdown: for each machine its tier, and the GiB that labs and lessons need of a GPU."""
    names = list(needs(TIERS["gpu1"]))
    rows = [f"| GPUs | tier | GiB each | {' | '.join(names)} |", "|---|---|---|" + "---|" * len(names)]
    for card, n in CARDS:
        tier, memory = tier_of(card, n), GPUS[card].memory_bytes
        found = " | ".join(f"{n_bytes / GIB:.1f}" for n_bytes in needs(tier).values())
        rows.append(f"| {n} x {card} | `{tier.name}` | {memory / GIB:.1f} | {found} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
