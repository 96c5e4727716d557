"""Training in 16 bits: `low_precision_weights` (lost updates, two ways to keep them), then `loss_scaling`.

FSDP's mixed precision, which computes in 16 bits from weights that it stores in 32, is in `fsdp`.
"""

from shardlab.precision.loss_scaling import GradScaler
from shardlab.precision.low_precision_weights import MasterWeights, StochasticRounding, stochastic_round_

__all__ = ["GradScaler", "MasterWeights", "StochasticRounding", "stochastic_round_"]
