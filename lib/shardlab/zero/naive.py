"""Stage 1 in one class: every parameter has an owner, who alone keeps the optimizer's states of it.

Source: Rajbhandari et al. 2020, "ZeRO" (SC20), section 5.1.
"""

import torch
import torch.distributed as dist
from torch.optim import Optimizer


class NaiveZeRO:
    """Deal whole parameters out to the ranks; average each gradient, let its owner step, broadcast what came of it.

    Sends: an all_reduce of each gradient and a broadcast of each parameter from its owner: with psi bytes of
    parameters, 2 psi (N-1)/N a rank and step, and as owner up to psi/N more, down a tree or N-1 times.
    Keeps: 1/N of the optimizer's states, where the parameters are of a size.
    """

    def __init__(self, params, optimizer_class: type[Optimizer], **defaults) -> None:
        self.params = list(params)
        self.optim = optimizer_class(self.params[dist.get_rank() :: dist.get_world_size()], **defaults)

    @torch.no_grad()
    def step(self) -> None:
        for p in self.params:
            dist.all_reduce(p.grad.div_(dist.get_world_size()))
        self.optim.step()
        for i, p in enumerate(self.params):
            dist.broadcast(p.data, src=i % dist.get_world_size())

    def zero_grad(self) -> None:
        for p in self.params:
            p.grad = None
