"""What optimizers and checkpoints ask of parameters and their groups."""

from torch import Tensor
from torch.distributed.tensor import DTensor


def local(t: Tensor) -> Tensor:
    """What this rank holds of a tensor, without its history."""
    return (t.to_local() if isinstance(t, DTensor) else t).detach()


def hyperparameters(group: dict) -> dict:
    """A parameter group without its parameters: the learning rate and the like."""
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}
