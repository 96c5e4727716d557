"""Lab 8: the reference line, which is the planner's choice as a program."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from grading.checks.lab8_capstone.job import RANKS, Job, draw, job_of
from grading.checks.lab8_capstone.judge_tokens_per_s import lap_of
from grading.checks.lab8_capstone.judge_weights_memory_links import line_on
from grading.checks.lab8_capstone.on_ranks import LEARNING_RATE, MOMENTUM
from grading.references.lab8_capstone import fastest_strategy
from grading.references.lab8_capstone.fastest_strategy import Choice


def asked(seed: int) -> Iterator[tuple]:
    return (("planned_tokens_per_s", facts) for facts in draw(seed).values())


def on_ranks(seed: int) -> Iterator[tuple[str, dict]]:
    return (("line", line_on(facts)) for facts in draw(seed).values())


def races(seed: int) -> Iterator[tuple[str, dict]]:
    return (("laps", lap_of(facts)) for facts in draw(seed).values())


def follow(model: nn.Module, job: Job):
    """Build the step of the strategy that is the fastest by arithmetic."""
    return follow_choice(model, job, fastest_strategy.best(job))


def follow_choice(model: nn.Module, job: Job, choice: Choice):
    shape = (RANKS // choice.shards, choice.shards)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    mesh = mesh["shard"] if choice.shards == RANKS else mesh
    for i, block in enumerate(model.blocks, 1):
        if choice.recompute_every and i % choice.recompute_every == 0:
            model.blocks[i - 1] = checkpoint_wrapper(block)
        fully_shard(model.blocks[i - 1], mesh=mesh, reshard_after_forward=choice.reshard)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)

    def train_step(tokens, targets):
        parts = [*zip(tokens.split(choice.micro_batch), targets.split(choice.micro_batch), strict=True)]
        for i, part in enumerate(parts, 1):
            model.set_requires_gradient_sync(i == len(parts) or not choice.reduce_once)
            (model(*part) / len(parts)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return train_step


def planned_tokens_per_s(facts: dict) -> float:
    job = job_of(facts)
    return fastest_strategy.tokens_per_s(job, fastest_strategy.best(job))


ON_RANKS = {"line": follow, "laps": follow}
HIDDEN = ("recompute_every", "reduce_once", "shards")
