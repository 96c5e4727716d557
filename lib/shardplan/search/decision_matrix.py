"""The decision matrix: six jobs, the strategy that a course page chose for each, and what a plan says of them.

The page leaves open how many tokens a GPU computes at a time, what is recomputed, and the optimizer's kernel. It is
given its best chance: one short sequence, all blocks recomputed, a fused kernel, gradients that are views of DDP's
buckets. The states have 16 bytes a parameter, as the page counts them. What does not fit then never will. Beside it
stands the fastest plan that fits, from a search over all that the planner knows.
"""

from dataclasses import dataclass, field
from functools import cache

from shardplan.api import setup_of
from shardplan.memory import memory_plan
from shardplan.records import Plan
from shardplan.search.strategies import search
from shardplan.setup import Setup
from shardplan.speed import speed_plan
from shardplan.strategy import Strategy

BEST_CHANCE = {"seq_len": 2048, "micro_batch": 1, "recompute": "full", "optimizer_kernel": "fused"}
# A step of one micro-batch has no use for a pipeline, and a short sequence none for being split
SEARCHED = {"seq_len": BEST_CHANCE["seq_len"], "optimizer_kernel": "fused", "pipeline": 1, "context": 1}


@dataclass(frozen=True)
class Scenario:
    """`chosen`: the page's strategy, in its words and as fields of `Strategy`; `job`: what any strategy has to do."""

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
    page: Plan  # of the page's strategy, as it is given its best chance
    best: Plan | None  # the fastest that fits

    @property
    def gain(self) -> float | None:
        """How many times as many tokens a second as the page's; None where that does not fit."""
        if self.best is None or self.page.fits != "yes":
            return None
        return self.best.job_tokens_per_s / self.page.job_tokens_per_s


def pages_plan(name: str) -> Plan:
    """Raises KeyError if there is no such scenario."""
    s = SCENARIOS[name]
    setup = setup_of(s.model, s.machine, s.gpus, **BEST_CHANCE, **s.job, **s.chosen)
    return Plan(setup, memory_plan(setup), speed_plan(setup))


@cache
def best_plan(name: str) -> Plan | None:
    """The fastest that fits, with sequences of the same length: with fp32 shards, and with bf16 and a master copy."""
    s = SCENARIOS[name]
    precisions = ("bf16",) if s.job else ("bf16-mixed", "bf16-master")
    found = [
        search(s.model, s.machine, gpus=s.gpus, precision=precision, **SEARCHED, **s.job).best
        for precision in precisions
    ]
    return max(filter(None, found), key=lambda plan: plan.job_tokens_per_s, default=None)


def matrix() -> list[Row]:
    """All of SCENARIOS: some thousand plans."""
    return [Row(scenario, pages_plan(name), best_plan(name)) for name, scenario in SCENARIOS.items()]


def in_words(setup: Setup) -> str:
    """The choices that differ from the defaults, as arguments: "sharding='ZERO_1', recompute='full'"."""
    plain, told = Strategy(), {}
    for name, value in vars(setup.strategy).items():
        if name == "sharding" and setup.world_size > 1 or name not in _NOT_TOLD and value != getattr(plain, name):
            told[name] = value
    return ", ".join(f"{name}={value!r}" for name, value in told.items())


# What the job is, what follows from the rest, and what one GPU has no use for
_NOT_TOLD = ("sharding", "seq_len", "lora_rank", "base_4bit", "optimizer_kernel", "gradient_as_bucket_view")
