"""The decision matrix: six jobs, the strategy that a course page chose for each, and the plan of each strategy.

The page leaves open how many tokens a GPU computes at a time, what is recomputed, and the optimizer's kernel. We choose
what needs the least memory: one short sequence, all blocks recomputed, a fused kernel, gradients that are views of
DDP's buckets. The states have 16 bytes a parameter, as the page counts them. A strategy that does not fit then never
will. The matrix compares it with the fastest plan that fits, from a search over all that the planner knows.
"""

from dataclasses import dataclass, field
from functools import cache

from shardplan.api import figures_of, setup_of
from shardplan.planned_job import Setup
from shardplan.records import Plan
from shardplan.search.strategies import search
from shardplan.strategy import Strategy

BEST_CHANCE = {"seq_len": 2048, "micro_batch": 1, "recompute": "full", "optimizer_kernel": "fused"}
# A pipeline does not help a step of one micro-batch, and splitting does not help a short sequence
SEARCHED = {"seq_len": BEST_CHANCE["seq_len"], "optimizer_kernel": "fused", "pipeline": 1, "context": 1}


@dataclass(frozen=True)
class Scenario:
    """A job. `words`, `chosen`: the page's strategy, in its words and as fields; `job`: fields of every strategy."""

    name: str
    model: str
    machine: str
    gpus: int
    words: str
    chosen: dict
    job: dict = field(default_factory=dict)


SCENARIOS = {
    s.name: s
    for s in (
        Scenario(
            "7B",
            "llama-2-7b",
            "A100-80GB x 4",
            4,
            "DDP or NO_SHARD",
            {"sharding": "DDP", "precision": "bf16-master", "gradient_as_bucket_view": True},
        ),
        Scenario("13B", "llama-2-13b", "dgx-a100", 8, "SHARD_GRAD_OP", {"sharding": "SHARD_GRAD_OP"}),
        Scenario("70B", "llama-3.1-70b", "dgx-h100", 8, "FULL_SHARD", {"sharding": "FULL_SHARD"}),
        Scenario(
            "70B on 64",
            "llama-3.1-70b",
            "dgx-h100",
            64,
            "HYBRID_SHARD, sharded inside a node",
            {"sharding": "FULL_SHARD", "shard_size": 8},
        ),
        Scenario(
            "405B",
            "llama-3.1-405b",
            "dgx-h100",
            1024,
            "FSDP, tensor and sequence parallel",
            {"sharding": "FULL_SHARD", "tensor": 8},
        ),
        Scenario(
            "QLoRA",
            "llama-2-7b",
            "A100-40GB x 1",
            1,
            "LoRA on 4-bit weights",
            {"sharding": "DDP", "precision": "bf16"},
            {"lora_rank": 16, "base_4bit": True},
        ),
    )
}


@dataclass(frozen=True)
class Row:
    scenario: Scenario
    page: Plan  # of the page's strategy, with BEST_CHANCE
    best: Plan | None  # the fastest that fits

    @property
    def gain(self) -> float | None:
        """Ratio of the best plan's tokens/s to the page's; None if nothing fits, or the page's plan does not."""
        if self.best is None or self.page.fits != "yes":
            return None
        return self.best.job_tokens_per_s / self.page.job_tokens_per_s


def pages_plan(name: str) -> Plan:
    """Plan the page's strategy. Raises KeyError if there is no such scenario."""
    s = SCENARIOS[name]
    return figures_of(setup_of(s.model, s.machine, s.gpus, **BEST_CHANCE, **s.job, **s.chosen))


@cache
def best_plan(name: str) -> Plan | None:
    """Search the fastest plan that fits at the same sequence length: bf16-mixed and bf16-master (a LoRA job: bf16)."""
    s = SCENARIOS[name]
    precisions = ("bf16",) if s.job else ("bf16-mixed", "bf16-master")
    found = [
        search(s.model, s.machine, gpus=s.gpus, precision=precision, **SEARCHED, **s.job).best
        for precision in precisions
    ]
    return max(filter(None, found), key=lambda plan: plan.job_tokens_per_s, default=None)


def matrix() -> list[Row]:
    """Return a row for each of SCENARIOS. Makes some thousand plans."""
    return [Row(scenario, pages_plan(name), best_plan(name)) for name, scenario in SCENARIOS.items()]


def in_words(setup: Setup) -> str:
    """Return the choices that differ from the defaults, as arguments: "sharding='ZERO_1', recompute='full'"."""
    plain, told = Strategy(), {}
    for name, value in vars(setup.strategy).items():
        if name == "sharding" and setup.world_size > 1 or name not in _NOT_TOLD and value != getattr(plain, name):
            told[name] = value
    return ", ".join(f"{name}={value!r}" for name, value in told.items())


# Fields that describe the job, follow from the rest, or do not matter on one GPU
_NOT_TOLD = ("sharding", "seq_len", "lora_rank", "base_4bit", "optimizer_kernel", "gradient_as_bucket_view")
