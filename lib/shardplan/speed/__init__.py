"""The time of a step, the share of each part, and the figures that follow: tokens a second, MFU.

Read `achievable` (shares of a data sheet's figures that programs reach), `passes` and `kernels` (how long a unit
computes), `collectives` (how long its messages take), `micro_batch` and `data_parallel` (what waits for what),
`updating` and `offloading` (the optimizer), `step` (the sum), `spread` (its range).
"""

from shardplan.flops import hardware_flops, model_flops
from shardplan.speed.step import speed_plan
from shardplan.traffic import bytes_by_link

__all__ = ["bytes_by_link", "hardware_flops", "model_flops", "speed_plan"]
