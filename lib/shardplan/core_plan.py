"""Figures of a plan, memory and speed, without words."""

from shardplan.memory import memory_plan
from shardplan.planned_job import Setup
from shardplan.records import Plan
from shardplan.speed import speed_plan


def figures_of(setup: Setup, *, every_block: bool = True) -> Plan:
    """Plan memory and speed. Without `every_block`, only the blocks at both ends are looked at: same peak, faster."""
    return Plan(setup, memory_plan(setup, every_block=every_block), speed_plan(setup))
