"""Training with 16 bits: `weights` (what they lose, and two ways to keep it), then `loss_scaling` (float16's range).

FSDP's mixed precision, which computes in 16 bits from weights that it stores in 32, lives in `fsdp`.
"""

from shardlab.precision.loss_scaling import GradScaler
from shardlab.precision.weights import MasterWeights, StochasticRounding, cast_buffers, stochastic_round_

__all__ = ["GradScaler", "MasterWeights", "StochasticRounding", "cast_buffers", "stochastic_round_"]
