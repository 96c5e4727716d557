"""The figures of the lessons. Each function returns a figure, which shows itself as the last value of a cell.

They draw what they are given: one message a figure, what is measured in colour beside what was predicted in grey.
"""

from shardlab.show.plots.beside import predicted_beside_measured
from shardlab.show.plots.buckets import bucket_curve
from shardlab.show.plots.chunks import chunks_over_hops
from shardlab.show.plots.curves import curves_beside_points
from shardlab.show.plots.laps import laps_in_turn
from shardlab.show.plots.memory import memory_over_step, memory_stacks
from shardlab.show.plots.memory_beside import memory_beside
from shardlab.show.plots.pipeline import pipeline_schedules
from shardlab.show.plots.planned import planned_memory, planned_stacks, step_parts
from shardlab.show.plots.published import predicted_beside_published
from shardlab.show.plots.roofline import overlap_roofline
from shardlab.show.plots.scaling import scaling_efficiency
from shardlab.show.plots.searched import speed_against_memory
from shardlab.show.plots.timeline import timelines

__all__ = [
    "bucket_curve",
    "chunks_over_hops",
    "curves_beside_points",
    "laps_in_turn",
    "memory_beside",
    "memory_over_step",
    "memory_stacks",
    "overlap_roofline",
    "pipeline_schedules",
    "planned_memory",
    "planned_stacks",
    "predicted_beside_measured",
    "predicted_beside_published",
    "scaling_efficiency",
    "speed_against_memory",
    "step_parts",
    "timelines",
]
