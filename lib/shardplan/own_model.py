"""Plan a model of the user's own: a file that defines it, a function that makes it, or a torch module.

    plan_model("train.py:build", "8x512", "H100", 8, recompute="full").fits        "yes"

Memory and messages come from the trace (`trace.any_model`): the model's own step, under PyTorch's engines, without its
numbers. The trace has no time of computing; what is stated is the least time, of the FLOPs at the card's peak.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from itertools import groupby

from rich.console import Group
from torch import nn

from shardlab.launch import launch
from shardplan.api import setup_of
from shardplan.formatting import gib, seconds
from shardplan.memory import allocator
from shardplan.planned_job import Setup
from shardplan.records import MemoryPlan, Plan
from shardplan.shape import Shape
from shardplan.speed.collectives import seconds as seconds_of
from shardplan.speed.kernels import peak_flops
from shardplan.strategy import Strategy
from shardplan.tables import RESERVED, categories_table, moments_table, verdict
from shardplan.trace.any_model import Input, Traced, trace_any
from shardplan.trace.run import moments_of
from shardplan.trace.traceable import check_engines, is_fsdp
from shardplan.trace.user_code import CannotTrace, without_numbers
from shardplan.traffic.groups import group
from shardplan.traffic.messages import Send
from shardsim.machines import Machine

CHOSEN = ("sharding", "shard_size", "precision", "recompute", "recompute_every", "optimizer", "optimizer_kernel")
CHOSEN += ("accumulation", "accumulate_unsharded", "bucket_cap_mb", "gradient_as_bucket_view")
GROUPS = ("shard", "replicate", "data")


@dataclass(frozen=True)
class OwnPlan:
    """A plan of a user's model: its memory, and what a GPU sends in a step."""

    setup: Setup  # its shape is only a name
    traced: Traced
    memory: MemoryPlan
    sends: tuple[Send, ...]

    @property
    def fits(self) -> str:
        return self.as_plan.fits

    @property
    def as_plan(self) -> Plan:
        return Plan(self.setup, self.memory, None)

    def as_json(self) -> dict:
        memory, traced = self.memory, self.traced
        return {
            "model": {"name": self.setup.shape.name, "n_params": traced.n_params, "units": traced.units},
            "machine": {"name": self.setup.machine.name, "memory_bytes": self.setup.machine.memory_bytes},
            "world_size": self.setup.world_size,
            "fits": self.fits,
            "memory": {
                "allocated_bytes": memory.allocated_bytes,
                "device_bytes": memory.device_bytes,
                "peak": {"name": memory.peak.name, "bytes": memory.peak.by_category()},
            },
            "flops": traced.flops,
            "messages": [
                {"kind": s.kind, "ranks": s.group.size, "times": s.times, "bytes": s.bytes} for s in self.sends
            ],
        }


def plan_model(
    source: str | Callable | nn.Module,
    batch: str | Sequence[str],
    machine: str | Machine,
    world_size: int,
    *,
    wrap: str = "block",
    timeout_s: float = 600.0,
    **strategy,
) -> OwnPlan:
    """Plan a model of the user's own. `batch`: the shape of each input of one GPU's micro-batch, "8x512".

    `source`: "file.py:name", a function without arguments, or a module. `wrap`: FSDP's units: "block" (the members of
    each ModuleList), "whole", or names of classes, "Block,Expert". The rest: fields of `Strategy`.

    Raises ValueError that says what can't be built, traced or planned, and LaunchError after `timeout_s`.
    """
    for name in strategy:
        if name not in CHOSEN:
            raise ValueError(_not_chosen(name))
    name = source if isinstance(source, str) else getattr(source, "__name__", type(source).__name__)
    setup = own_setup(name, machine, world_size, **strategy)
    inputs = [Input.read(words) for words in (batch.split(",") if isinstance(batch, str) else batch)]
    source = without_numbers(source) if isinstance(source, nn.Module) else source
    options = {"timeout_s": timeout_s, "device": "cpu", "backend": "gloo", "stream": False}
    traced = launch(trace_any, 1, source, inputs, setup, wrap, **options)[0]
    if isinstance(traced, str):
        raise CannotTrace(traced)
    moments = tuple(moments_of(traced.parts))
    memory = MemoryPlan(moments, allocator.reserved_bytes(moments), allocator.context_bytes(setup))
    return OwnPlan(setup, traced, memory, tuple(_sends(setup, traced)))


def own_setup(name: str, machine: str | Machine, world_size: int, **strategy) -> Setup:
    """Make the setup of a user's model, of which only the name is known. In bf16, FSDP casts; else autocast does."""
    nothing_else_is_known = Shape(name, *[1] * 7, max_seq_len=1 << 62)
    setup = setup_of(nothing_else_is_known, machine, world_size, **strategy)
    if "precision" not in strategy and not is_fsdp(setup.strategy):
        setup = replace(setup, strategy=replace(setup.strategy, precision="bf16-autocast"))
    check_engines(setup.strategy)
    return setup


def _not_chosen(name: str) -> str:
    if name in {f.name for f in fields(Strategy)}:
        return f"{name} is a choice of the planner's own models; your code makes it for yours: leave it out"
    return f"{name!r} is not known; did you mean {get_close_matches(name, CHOSEN, 1, 0.0)[0]!r}?"


def _sends(setup: Setup, traced: Traced) -> list[Send]:
    by_size = {group(setup, name).size: group(setup, name) for name in reversed(GROUPS)}
    found = [
        Send(kind, "", by_size[n], n_bytes, times)
        for (kind, n, n_bytes), times in traced.messages.items()
        if n in by_size and n > 1
    ]
    return sorted(found, key=lambda send: (send.kind, send.group.size))


def own_report(plan: OwnPlan, batch: str) -> Group:
    """Report all that a plan of a user's model says."""
    setup, traced = plan.setup, plan.traced
    gpus = f"{setup.world_size:,} GPU{'s' * (setup.world_size > 1)} of {setup.machine.name}"
    units = ", ".join(f"{n} x {name}" for name, n in traced.units.items())
    whole = "the whole model is one; name others: --wrap Block,Expert"
    units = f"{units} and the rest" if units else whole
    flops_s = traced.flops / peak_flops(setup)
    least = f"{traced.flops:.3g} FLOPs, at least {seconds(flops_s)} at the card's peak"
    lines = [
        f"{setup.shape.name}, {traced.n_params:,} parameters, on {gpus}",
        f"sharding={setup.strategy.sharding}, precision={setup.strategy.precision}, batch {batch} on each GPU",
        f"loss: {traced.loss}; units of FSDP and of recomputation: {units}",
    ]
    peak = [t for t in sorted(plan.memory.peak.terms, key=lambda t: -t.n_bytes)[:3] if t.n_bytes]
    largest = [f"  {gib(t.n_bytes)}: {t.words}" for t in peak]
    return Group(
        *lines,
        verdict(plan.as_plan),
        "",
        categories_table(plan.as_plan),
        RESERVED,
        f"The peak is in {plan.memory.peak.name}. Largest there:",
        *largest,
        "",
        moments_table(plan.as_plan),
        *_messages(setup, plan.sends),
        f"A GPU computes in a step {least}.",
        *(["Traced with a CPU's kernels: a GPU's may use more for a while."] if traced.device == "cpu" else []),
    )


def _messages(setup: Setup, sends: Sequence[Send]) -> list[str]:
    if not sends:
        return ["A GPU sends nothing in a step."]
    lines = []
    for (kind, n), some in groupby(sends, key=lambda send: (send.kind, send.group.size)):
        some = list(some)
        times, sent = sum(s.times for s in some), sum(s.bytes for s in some)
        alone_s = sum(s.times * seconds_of(setup, s) for s in some)
        lines.append(
            f"A GPU sends {gib(sent)} in {times:,} {kind}s among {n:,} GPUs; alone they take {seconds(alone_s)}."
        )
    return lines
