"""A plan's figures, without words: what advice and search make by the hundred."""

from shardlab.simulate.plan.memory import memory_plan
from shardlab.simulate.plan.records import Plan
from shardlab.simulate.plan.setup import Setup
from shardlab.simulate.plan.speed import speed_plan


def figures_of(setup: Setup, *, every_block: bool = True) -> Plan:
    """Without `every_block` memory is looked at in the blocks at both ends alone: the same peak, sooner."""
    return Plan(setup, memory_plan(setup, every_block=every_block), speed_plan(setup))
