"""Make a plan from a model's name, a machine's name and the choices of a strategy.

plan("8B", "dgx-h100", 64, recompute="selective", seq_len=8192).fits        "yes"
"""

from dataclasses import fields, replace

from shardplan.advice.advice import advise
from shardplan.advice.bottleneck import bottleneck
from shardplan.aliases import in_our_words
from shardplan.memory import memory_plan
from shardplan.models import shape_of
from shardplan.planned_job import Setup
from shardplan.records import Plan
from shardplan.shape import Shape
from shardplan.speed import speed_plan
from shardplan.strategy import Strategy, one_of
from shardsim import machines
from shardsim.machines import Machine

FIELDS = tuple(f.name for f in fields(Strategy))


def plan(model: str | Shape, machine: str | Machine, world_size: int, **strategy) -> Plan:
    """Make a plan. `model`: a name, the path of a Hugging Face config.json, or a Shape. The rest: fields of `Strategy`.

    Raises ValueError that names the field and the nearest valid value.
    """
    return plan_of(setup_of(model, machine, world_size, **strategy))


def setup_of(model: str | Shape, machine: str | Machine, world_size: int, **strategy) -> Setup:
    """Make a Setup. The default `seq_len` is Strategy's, or the model's number of positions if that is smaller.
    The default `precision` is "fp16-mixed" on a card without bf16.

    Raises ValueError, as `plan` does.
    """
    for name in strategy:
        one_of("the field", name, FIELDS)
    shape = model if isinstance(model, Shape) else shape_of(model)
    gpus = world_size if isinstance(world_size, int) else 1
    found = machine if isinstance(machine, Machine) else machines.machine(machine, gpus)
    precision = Strategy.precision if "bf16" in found.gpu.flops else "fp16-mixed"
    defaults = {"seq_len": min(Strategy.seq_len, shape.max_seq_len), "precision": precision}
    strategy = defaults | in_our_words(strategy, found, gpus)
    return Setup(shape, found, world_size, Strategy(**strategy))


def plan_of(setup: Setup) -> Plan:
    """Make a plan with its bottleneck and advice in words. For the advice some dozen other plans are made."""
    found = figures_of(setup)
    advice = advise(found)
    words, options = tuple(a.words for a in advice), tuple(a.options for a in advice)
    return replace(found, bottleneck=bottleneck(found), advice=words, options=options)


def figures_of(setup: Setup, *, every_block: bool = True) -> Plan:
    """Plan memory and speed. Without `every_block`, only the blocks at both ends are looked at: same peak, faster."""
    return Plan(setup, memory_plan(setup, every_block=every_block), speed_plan(setup))
