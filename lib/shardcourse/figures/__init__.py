"""The figures of the lessons. Each function returns a figure, which is displayed as the last value of a cell.

Each figure has one message. Measured values are in colour, predicted values in grey.
"""

from shardcourse.figures.buckets import bucket_curve
from shardcourse.figures.chunks import chunks_over_hops
from shardcourse.figures.curves import curves_beside_points
from shardcourse.figures.laps import laps_in_turn
from shardcourse.figures.memory import memory_over_step, memory_stacks
from shardcourse.figures.memory_comparison import memory_beside
from shardcourse.figures.pipeline import pipeline_schedules
from shardcourse.figures.plan import planned_memory, planned_stacks, step_parts
from shardcourse.figures.predicted_measured import predicted_beside_measured
from shardcourse.figures.scaling import scaling_efficiency
from shardcourse.figures.search import speed_against_memory
from shardcourse.figures.slices import slices
from shardcourse.figures.timeline import timelines

__all__ = [
    "bucket_curve",
    "chunks_over_hops",
    "curves_beside_points",
    "laps_in_turn",
    "memory_beside",
    "memory_over_step",
    "memory_stacks",
    "pipeline_schedules",
    "planned_memory",
    "planned_stacks",
    "predicted_beside_measured",
    "scaling_efficiency",
    "slices",
    "speed_against_memory",
    "step_parts",
    "timelines",
]
