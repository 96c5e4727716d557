"""ZeRO-3 in one class: a parameter is whole only while its module computes. Blocking, one message a parameter.

What `fully_shard` does better: one message for a whole unit, sent while something else computes.

Source: Rajbhandari et al. 2020, "ZeRO", section 5.3.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardlab.nested_tensors import before_backward, with_gradient
from shardlab.single_tensor_collectives import all_gather, reduce_scatter


class NaiveFSDP(nn.Module):
    """Gather a module's own parameters before its forward and again before its backward; free them after each.

    Give the optimizer `parameters()` of the wrapped module: flat shards, 1-D, each 1/N of its parameter, padded.

    Sends: for each parameter two all_gathers and one reduce_scatter: 3 (N-1)/N times the model's bytes a rank.
    Keeps: the shards, and one module's own parameters. Frozen ones stay whole from backward to the next forward.
    """

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.module = module
        self.shards = {p: _Shard(p, process_group) for p in module.parameters()}
        for m in module.modules():
            if own := [self.shards[p] for p in m.parameters(recurse=False)]:
                m.register_forward_pre_hook(lambda m, args, own=own: _gather(own))
                m.register_forward_hook(lambda m, args, output, own=own: _after_forward(own, output))
        for p, shard in self.shards.items():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(lambda p, shard=shard: shard.reduce())

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)


class _Shard:
    """One parameter: `p.data` is the shard, (S,), or in use the whole, in the parameter's own shape."""

    def __init__(self, p: nn.Parameter, group: dist.ProcessGroup | None) -> None:
        self.p, self.group, self.world_size = p, group, dist.get_world_size(group)
        padded = torch.zeros(-(-p.numel() // self.world_size) * self.world_size, dtype=p.dtype, device=p.device)
        padded[: p.numel()] = p.detach().flatten()
        self.shard = padded.chunk(self.world_size)[dist.get_rank(group)].clone()
        self.gathered = torch.empty_like(padded)
        self.whole = self.gathered[: p.numel()].view(p.shape)
        self.grad: Tensor | None = None  # the shard's, while p.grad is about to become the whole gradient
        self.free()

    def gather(self) -> None:
        if self.gathered.untyped_storage().nbytes() == 0:
            self.gathered.untyped_storage().resize_(self.gathered.nbytes)  # see [Note: lifetime] in per_parameter
            all_gather(self.gathered, self.shard, group=self.group)
            self.p.data, self.grad, self.p.grad = self.whole.data, self.p.grad, None

    def free(self) -> None:
        self.p.data, self.p.grad = self.shard, self.p.grad if self.grad is None else self.grad
        self.grad = None
        self.gathered.untyped_storage().resize_(0)

    def reduce(self) -> None:
        """Backward has made the whole gradient: average it over ranks, keep this rank's part, free the parameter."""
        whole = torch.zeros_like(self.gathered)
        whole[: self.p.numel()] = self.p.grad.flatten()
        mine = torch.empty_like(self.shard)
        reduce_scatter(mine, whole.div_(self.world_size), group=self.group)
        self.grad = mine if self.grad is None else self.grad.add_(mine)
        self.p.grad = None
        self.free()


def _gather(shards: list[_Shard]) -> None:
    for shard in shards:
        shard.gather()


def _after_forward(shards: list[_Shard], output) -> None:
    for shard in shards:
        shard.free()
    for t in with_gradient(output):
        before_backward(t, lambda _: _gather(shards))
