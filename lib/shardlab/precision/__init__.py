"""Training in 16 bits.

Read `master_weights_and_stochastic_rounding` (lost updates, two ways to keep them), then `loss_scaling`.

FSDP's mixed precision, which computes in 16 bits from weights that it stores in 32, is in `fsdp`.
"""

from shardlab.precision.loss_scaling import GradScaler
from shardlab.precision.master_weights_and_stochastic_rounding import (
    MasterWeights,
    StochasticRounding,
    stochastic_round_,
)

__all__ = ["GradScaler", "MasterWeights", "StochasticRounding", "stochastic_round_"]
