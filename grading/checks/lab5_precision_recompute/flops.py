"""Count FLOPs of a block of code in the same step as its bytes."""

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class Flops(TorchDispatchMode):
    """Context that adds up the FLOPs of the block. (FlopCounterMode keeps tensors alive, which would cost bytes.)"""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = op(*args, **kwargs)
        if formula := flop_registry.get(getattr(op, "overloadpacket", op)):
            self.total += formula(*args, **kwargs, out_val=result)
        return result
