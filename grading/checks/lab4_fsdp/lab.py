"""The checks of lab 4, in the order of the notebook."""

from grading.checks.lab4_fsdp import (
    judge_largest_ddp_depth,
    judge_offload,
    judge_offload_cost,
    judge_peak_and_losses,
    judge_scaling_efficiency,
    judge_sharded_units_recompute,
    judge_speed,
    on_ranks,
)
from grading.judge.session import Check, Ground

DRILLS = on_ranks.__name__
pace = judge_peak_and_losses.reference_losses

CHECKS = {
    "lab4.depth": Check(2, judge_largest_ddp_depth.judge),
    "lab4.fits": Check(3, judge_peak_and_losses.judge_fits, ground=Ground.SEEN),
    "lab4.sharded": Check(3, judge_sharded_units_recompute.judge_sharded, ground=Ground.CLAIMED),
    "lab4.units": Check(3, judge_sharded_units_recompute.judge_units, ground=Ground.CLAIMED),
    "lab4.speed": Check(2, judge_speed.judge, timed=True, ground=Ground.SEEN),
    "lab4.larger": Check(3, judge_peak_and_losses.judge_larger, ground=Ground.SEEN),
    "lab4.recompute": Check(3, judge_sharded_units_recompute.judge_recompute, ground=Ground.CLAIMED),
    "lab4.offload": Check(3, judge_offload.judge, ground=Ground.CLAIMED),
    "lab4.price": Check(3, judge_offload_cost.judge),
    "lab4.efficiency": Check(2, judge_scaling_efficiency.judge),
}
