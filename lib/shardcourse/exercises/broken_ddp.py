"""Exercise of lesson 3b: a data-parallel wrapper that overlaps, sends the right bytes, and trains replicas apart."""

import torch
import torch.distributed as dist
from torch import nn

from shardcourse.experiments.measured_training import fresh_model, samples


class BrokenDDP(nn.Module):
    """Send 13 gradients at a time, and collect each message before the next is sent."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        for p in module.parameters():
            dist.broadcast(p.detach(), src=0)
            p.register_post_accumulate_grad_hook(self._ready)

    def forward(self, *args):
        self.waiting, self.under_way = [], None
        return self.module(*args)

    def _ready(self, p):
        self.waiting.append(p)
        if len(self.waiting) == 13:
            self._collect()
            flat = torch.cat([q.grad.flatten() for q in self.waiting]) / dist.get_world_size()
            self.under_way = self.waiting, flat, dist.all_reduce(flat, async_op=True)
            self.waiting = []

    def _collect(self):
        if self.under_way:
            params, flat, work = self.under_way
            work.wait()
            for q, mean in zip(params, flat.split([q.numel() for q in params]), strict=True):
                q.grad.copy_(mean.view_as(q))


def three_steps(wrapper) -> dict:
    """Train three steps on this rank; return the parameters by name."""
    model = fresh_model(seed=dist.get_rank())
    ddp = wrapper(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        ddp(*samples(step)).backward()
        optimizer.step()
    return dict(model.named_parameters())
