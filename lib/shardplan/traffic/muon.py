"""Muon's updates: the matrices, the FLOPs of Newton-Schulz, and what ranks send if the matrices are sharded.

Newton-Schulz takes five steps on a whole matrix (r, c) with r <= c, in bf16. A step has three products: (r, c) by
(c, r), (r, r) by (r, r), (r, r) by (r, c). Sharded matrices are gathered first, 2 bytes a number:

    every-rank     each matrix is gathered on all N ranks, which all repeat the work    (N-1)/N of its bytes are sent
    one-owner      each is gathered on its owner, and the update is scattered           2 (N-1)/N of 1/N of its bytes
    all-at-once    all in two all_to_alls, and every rank works on its own matrices     the same bytes

Of a mixture each expert's matrix is updated by itself. With replicas each repeats its shards' work.

Source: Jordan et al. 2024, "Muon"; torch.optim.Muon; Liu et al. 2025, "Muon is scalable for LLM training", for owners.
"""

from typing import NamedTuple

from shardplan.flops import Product
from shardplan.planned_job import Setup
from shardplan.stage_parameters import Stage, Weight
from shardplan.traffic.groups import Group, group
from shardplan.traffic.messages import Send
from shardplan.traffic.units import units

STEPS = 5  # of Newton-Schulz
EACH = 2  # bytes a number, as it is sent and multiplied


class Matrix(NamedTuple):
    """Equal matrices: the parameter that holds them, and how often a stage has it, with how many experts in it."""

    weight: Weight
    times: int
    experts: int

    @property
    def sides(self) -> tuple[int, int]:
        rows, columns = self.weight.shape[0] // self.experts, self.weight.shape[1]
        return min(rows, columns), max(rows, columns)

    @property
    def n_bytes(self) -> float:
        return EACH * self.weight.numel / self.experts


def matrices(setup: Setup, stage: Stage) -> list[Matrix]:
    mixture = setup.shape.experts
    held = mixture.number // setup.strategy.expert if mixture else 1
    return [
        Matrix(w, times, held if w.name.startswith("experts.") else 1)
        for _, weights, times in units(stage)
        for w in weights
        if w.trained and w.orthogonal and setup.strategy.optimizer == "muon"
    ]


def products(matrix: Matrix) -> tuple[Product, ...]:
    """Products of one matrix's update, in all steps."""
    r, c = matrix.sides
    return STEPS * (Product("gram", r, c, r), Product("its square", r, r, r), Product("update", r, r, c))


def sharers(setup: Setup, matrix: Matrix) -> Group:
    """Return the ranks that share a matrix."""
    return group(setup, "same experts" if matrix.weight.spread > 1 else "shard")


def muon_sends(setup: Setup, stage: Stage) -> list[Send]:
    """Messages of a step's updates, for a rank; of an owner's, the mean over ranks."""
    if not setup.strategy.sharded[0]:
        return []
    found, of_all, of, back = [], dict[Group, float](), "momentum for Muon", "updates of Muon"
    for m in matrices(setup, stage):
        ranks, whole = sharers(setup, m), EACH * m.weight.padded_numel(setup.shards)
        of_all[ranks] = of_all.get(ranks, 0.0) + m.times * whole
        if setup.strategy.muon_way == "every-rank":
            found.append(Send("all_gather", of, ranks, whole, m.times))
        elif setup.strategy.muon_way == "one-owner":
            share = whole / ranks.size
            found += [Send("gather", of, ranks, share, m.times), Send("scatter", back, ranks, share, m.times)]
    if setup.strategy.muon_way != "all-at-once":
        return found
    return [Send("all_to_all", f"{of}, {back}", ranks, whole / ranks.size, 2) for ranks, whole in of_all.items()]
