"""Jobs that train, although something is wrong before their first step, for lesson 6b's exercise."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.optim import AdamW, Optimizer

from shardcourse.experiments.fsdp_switches import fsdp2
from shardlab import launch, local_device
from shardlab.model import Transformer, preset

Job = tuple[nn.Module, Optimizer]


def _model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(preset("1M")).to(local_device())


def sound() -> Job:
    model = fsdp2(_model())
    return model, AdamW(model.parameters())


def root_forgotten() -> Job:
    model = _model()
    for block in model.blocks:
        fully_shard(block)
    return model, AdamW(model.parameters())


def optimizer_made_first() -> Job:
    model = _model()
    optimizer = AdamW(model.parameters())
    return fsdp2(model), optimizer


def not_initialised_on_rank_2() -> Job:
    model, optimizer = sound()
    if dist.get_rank() == 2:
        nn.init.constant_(model.blocks[1].feed_forward.up.weight.to_local(), torch.nan)
    return model, optimizer


def one_unit() -> Job:
    model = _model()
    fully_shard(model)
    return model, AdamW(model.parameters())


JOBS: dict[Callable[[], Job], list[str]] = {  # job: its problems, by the words of the exercise
    sound: [],
    root_forgotten: ["plain parameter"],
    optimizer_made_first: ["old optimizer"],
    not_initialised_on_rank_2: ["not finite"],
    one_unit: ["large root"],
}


def check_find_problems(find_problems: Callable[[nn.Module, Optimizer], list[str]], device: str) -> str:
    """Run a reader's function on 4 ranks of each job. Return what it gets wrong, in words."""

    def answers() -> list[Sequence[str] | None]:
        return [find_problems(*make()) for make in JOBS]

    by_rank = launch(answers, 4, device=device, timeout_s=60, stream=False)
    if all(answer is None for answer in by_rank[0]):
        return "find_problems is not written yet"
    for i, (make, expected) in enumerate(JOBS.items()):
        for rank, found in enumerate(by_rank):
            if found[i] != expected:
                return f"job {make.__name__}, rank {rank}: expected {expected}, you return {found[i]}"
    return f"right: {len(JOBS)} jobs, the same answer on every rank"
