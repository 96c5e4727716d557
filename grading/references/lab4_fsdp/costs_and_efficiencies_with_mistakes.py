"""Lab 4: the price of offloading and the efficiencies of tables, and what usual mistakes make of them."""

from collections.abc import Iterator

from grading.checks.lab4_fsdp.judge_offload_cost import instances_of
from grading.checks.lab4_fsdp.judge_scaling_efficiency import KINDS, tables_of
from grading.references.lab4_fsdp import offload_costs, scaling_efficiencies

ON_RANKS = {}  # ranks run PyTorch's DDP and FSDP


def asked(seed: int) -> Iterator[tuple]:
    yield "priced", instances_of(seed)
    yield from (("efficiencies", tables_of(seed, kind)) for kind in KINDS)


def priced(instances: list[dict]) -> dict:
    right = [offload_costs.truth(**i) for i in instances]
    mistakes = {
        name: {
            words: [mistaken(i, t) for i, t in zip(instances, right, strict=True)] for words, mistaken in known.items()
        }
        for name, known in offload_costs.MISTAKES.items()
    }
    return {"right": right, "mistakes": mistakes}


def efficiencies(tables: list[list[dict]]) -> dict:
    mistakes = {words: [_named(m(runs)) for runs in tables] for words, m in scaling_efficiencies.MISTAKES.items()}
    return {"right": [scaling_efficiencies.truth(runs) for runs in tables], "mistakes": mistakes}


def _named(efficiency: dict) -> dict[str, float]:
    return {str(ranks): e for ranks, e in efficiency.items()}
