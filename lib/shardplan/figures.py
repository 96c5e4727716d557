"""A plan's figures, without words: what advice and search make by the hundred."""

from shardplan.memory import memory_plan
from shardplan.records import Plan
from shardplan.setup import Setup
from shardplan.speed import speed_plan


def figures_of(setup: Setup, *, every_block: bool = True) -> Plan:
    """Without `every_block` memory is looked at in the blocks at both ends alone: the same peak, sooner."""
    return Plan(setup, memory_plan(setup, every_block=every_block), speed_plan(setup))
