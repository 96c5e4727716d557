"""`plan`: the planner's speed and memory of one job, for tables of lessons 10a and 10b."""

from shardplan.api import setup_of
from shardplan.memory import memory_plan
from shardplan.speed import speed_plan


def plan(model: str, where: str, gpus: int, shard_size: int | None = None, **options):
    """Return the job's SpeedPlan, and the GiB at the peak of a GPU. `options` are those of `shardplan.api.setup_of`."""
    setup = setup_of(model, where, gpus, shard_size=shard_size, **options)
    return speed_plan(setup), memory_plan(setup).allocated_bytes / 2**30
