"""What trains the programs: each engine makes (model, optimizer) of a Net."""

from collections.abc import Iterable
from dataclasses import replace

from torch import nn
from torch.optim import SGD, AdamW

from programs.draw import Program
from programs.models import Net
from shardlab.cpu_offload_optimizer import CPUOffloadOptimizer
from shardlab.ddp import DDP
from shardlab.fsdp import CPUOffloadPolicy, FlatParameter, fully_shard
from shardlab.zero import ShardedDataParallel, ZeroRedundancyOptimizer


def _optimizer(program: Program):
    return (SGD, {"lr": 0.1, "momentum": 0.9}) if program.optimizer == "sgd" else (AdamW, {"lr": 0.05})


def by_marks(named: Iterable[tuple[str, nn.Parameter]], program: Program, names: bool = False) -> list[dict]:
    """Return the groups of an optimizer: parameters marked with no_decay, and the others."""
    groups: dict[bool, list] = {}
    for name, p in named:
        groups.setdefault(getattr(p, "no_decay", False), []).append((name, p) if names else p)
    decay = 0.0 if program.sparse else 0.3  # torch's optimizers don't decay by a sparse gradient
    return [{"params": params, "weight_decay": 0.0 if marked else decay} for marked, params in groups.items()]


def alone(net: Net, program: Program):
    cls, options = _optimizer(program)
    return net, cls(by_marks(net.named_parameters(), program), **options)


def ddp(net: Net, program: Program, **options):
    return DDP(net, **options), alone(net, program)[1]


def zero_1(net: Net, program: Program):
    cls, options = _optimizer(program)
    groups = by_marks(net.named_parameters(), program, names=True)
    return net, ZeroRedundancyOptimizer(groups, cls, bucket_cap_mb=1e-4, **options)


def zero_2(net: Net, program: Program):
    optimizer = zero_1(net, program)[1]
    return ShardedDataParallel(net, optimizer), optimizer


def fsdp(net: Net, program: Program, **options):
    shared = [net.blocks[0], net.blocks[-1]] if program.tied and len(net.blocks) > 1 else []
    for block in net.blocks:
        if block not in shared:
            fully_shard(block, **options)
    fully_shard([*shared, net] if shared else net, **options)
    return alone(net, program)


def offloaded(net: Net, program: Program):
    cls, options = _optimizer(program)
    model, _ = fsdp(net, program)
    return model, CPUOffloadOptimizer(by_marks(model.named_parameters(), program), cls, **options)


ENGINES = {
    "ddp": ddp,
    "ddp, unused": lambda net, p: ddp(net, p, find_unused_parameters=True, bucket_cap_mb=1e-4),
    "ddp, views": lambda net, p: ddp(net, p, gradient_as_bucket_view=True),
    "zero 1": zero_1,
    "zero 2": zero_2,
    "fsdp": fsdp,
    "fsdp, kept": lambda net, p: fsdp(net, p, reshard_after_forward=False),
    "flat": lambda net, p: fsdp(net, p, layout=FlatParameter),
    "fsdp, host": lambda net, p: fsdp(net, p, offload_policy=CPUOffloadPolicy()),
    "offloaded": offloaded,
}
UNITS = ("fsdp", "fsdp, kept", "flat", "fsdp, host", "offloaded")


def around_limits(program: Program, name: str) -> Program:
    """Return the program without what this engine does otherwise, and does not refuse: the README says most of it.

    In a flat parameter what is not used gets a gradient of zeros, not none, and nothing can be frozen in part. Blocks
    are flat parameters of their own, and are frozen and left out as a whole; tied blocks share one with all the rest.
    Of refused marks some programs are enough.

    Where nobody can see an output, only the first use of autograd is noticed. After it DDP's gradients are a rank's
    own, as the README says. A unit is sharded again, and a second backward crashes or raises an error of torch's.

    torch.compile gives other gradients of rrelu in a region that is recomputed (torch 2.11 and 2.13, without us).
    """
    if any(action == ("compile",) for action in program.actions):
        program = replace(program, specs=tuple(replace(s, rrelu=s.rrelu and not s.checkpoint) for s in program.specs))
    if "closure" in (program.output, *(spec.output for spec in program.specs if name in UNITS)):
        again = ("saliency", "penalty", "twice", "two forwards")
        actions = [(*a[:3], "", *a[4:]) if a[0] == "train" and a[3] in again else a for a in program.actions]
        program = replace(program, actions=tuple(actions))
    if name != "flat":
        return program
    if program.seed % 4:
        program = replace(program, specs=tuple(replace(spec, mark=False) for spec in program.specs))
    actions = program.actions
    if program.tied:
        actions = [(*a[:2], None, *a[3:]) if a[0] == "train" else a for a in actions]
        actions = [a for a in actions if a[0] not in ("freeze", "thaw")]
    if program.tied or any(spec.keeps == "beside" for spec in program.specs):
        actions = [a for a in actions if "auxiliary alone" not in a]
    return replace(program, actions=tuple(actions))
