"""ZeRO-3 in 60 lines, as lesson 5a writes it: a unit, its four hooks, and the function that makes units.

Lesson 5b imports it. A test compares the two texts.
"""

import torch
import torch.distributed as dist
from torch import nn

from shardlab.shard_groups import all_gather, reduce_scatter


class FlatUnit:
    """Parameters, given as (module, name), of which this rank keeps a shard."""

    def __init__(self, places):
        self.params = [module._parameters.pop(name) for module, name in places]
        sizes, n = [p.numel() for p in self.params], dist.get_world_size()
        self.used = sum(sizes)
        self.whole = torch.zeros(-(-self.used // n) * n, device=self.params[0].device)  # rounded up
        parts = self.whole[: self.used].split(sizes)
        for (module, name), p, part in zip(places, self.params, parts, strict=True):
            part.copy_(p.detach().flatten())
            p.data = part.view_as(p)  # from now on a view of `whole`
            module.__dict__[name] = p  # the module finds it, but does not list it as a parameter
        self.shard = nn.Parameter(self.whole.chunk(n)[dist.get_rank()].clone())
        self.reshard()

    def unshard(self):
        storage = self.whole.untyped_storage()
        if storage.nbytes() == 0:
            storage.resize_(self.whole.nbytes)
            all_gather(self.whole, self.shard.detach())

    def reshard(self):
        self.whole.untyped_storage().resize_(0)


@torch.no_grad()
def reduce_gradients(unit):
    """Average the unit's whole gradients over the ranks, and keep this rank's shard of the mean."""
    flat_grad = torch.zeros(unit.whole.shape, device=unit.whole.device)
    torch.cat([p.grad.flatten() for p in unit.params], out=flat_grad[: unit.used])
    for p in unit.params:
        p.grad = None
    received = torch.empty_like(unit.shard)
    reduce_scatter(received, flat_grad.div_(dist.get_world_size()))
    unit.shard.grad = received if unit.shard.grad is None else unit.shard.grad + received


class HookedUnit(FlatUnit):
    """A unit whose hooks gather, free and reduce it."""

    def __init__(self, module, places, reshard_after_forward=True):
        super().__init__(places)
        self.reshard_after_forward, self.n_ready = reshard_after_forward, 0
        module.register_forward_pre_hook(lambda module, args: self.pre_forward())
        module.register_forward_hook(lambda module, args, output: self.post_forward(output))
        for p in self.params:
            p.register_post_accumulate_grad_hook(lambda p: self.gradient_ready())

    def pre_forward(self):
        self.unshard()

    def post_forward(self, output):
        if self.reshard_after_forward:
            self.reshard()
        if output.requires_grad:
            output.register_hook(lambda grad: self.pre_backward())

    def pre_backward(self):
        self.unshard()

    def gradient_ready(self):
        self.n_ready += 1
        if self.n_ready == len(self.params):  # post_backward
            self.n_ready = 0
            self.reshard()
            reduce_gradients(self)


def my_fully_shard(module, *, unit=HookedUnit, **options):
    """Make one unit of all parameters below `module` that are in no unit yet."""
    found = ((m, name, p) for m in module.modules() for name, p in m._parameters.items())
    places = [(m, name) for m, name, p in found if p is not None and name != "shard"]  # "shard": of an inner unit
    module.unit = unit(module, places, **options)
    module.register_parameter("shard", module.unit.shard)  # what model.parameters() returns from now on
    return module


def by_blocks(model, shard=my_fully_shard, **options):
    """Make a unit of each block, and of what is left."""
    for block in model.blocks:
        shard(block, **options)
    return shard(model, **options)
