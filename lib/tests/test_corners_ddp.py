"""Corners of DDP, and of ZeRO-2: each is as with torch's, or refused by name."""

import sys
from functools import partial

import cloudpickle
import corners
import pytest
import torch
import torch.distributed as dist
from corners import two_layers, zero_1
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shardlab import launch
from shardlab.measure.traffic import record_traffic
from shardlab.parallel import fsdp as ours
from shardlab.parallel.ddp import DDP
from shardlab.parallel.zero import ShardedDataParallel

for module in (corners, sys.modules[__name__]):
    cloudpickle.register_pickle_by_value(module)
CPU = torch.device("cpu")


class Sliced(nn.Module):
    """A weight and a buffer that are parts of something larger, other ones on each rank."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(dist.get_rank())
        self.weight = nn.Parameter(torch.randn(4, 8)[:, :4])
        self.register_buffer("shift", torch.randn(4, 4).t())

    def forward(self, x):
        return x @ self.weight + self.shift


def first_outputs(wrapper, **options) -> list:
    return wrapper(Sliced(), **options)(torch.eye(4)).tolist()


def test_rank_0s_values_arrive_whatever_their_strides():
    """Under FSDP1, too; torch's sends them from GPUs only."""
    synced = partial(first_outputs, ours.FullyShardedDataParallel, device_id=CPU, sync_module_states=True)
    torchs = launch(first_outputs, 2, DistributedDataParallel)
    assert torchs[0] == torchs[1]
    assert launch(first_outputs, 2, DDP) == torchs
    assert launch(synced, 2) == torchs


def forwards_that_send(wrapper) -> tuple[list[bool], list]:
    """Which of some forwards send, and the buffers after all; the second rank evaluates more batches than the first."""
    torch.manual_seed(0)
    model, sent = wrapper(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))), []

    def forward(train: bool) -> None:
        x = torch.randn(3, 4) * (dist.get_rank() + 1)
        with record_traffic() as traffic, torch.set_grad_enabled(train):
            output = model.train(train)(x)
        sent.append(traffic.count() > 0)
        if train:
            output.sum().backward()

    forward(train=True)
    with model.no_sync():
        for _ in range(2):
            forward(train=True)
    for _ in range(2):
        forward(train=True)
    for _ in range(2):
        forward(train=False)
    forward(train=True)
    for _ in range(1 + dist.get_rank()):
        forward(train=False)
    dist.barrier()
    return sent[:9], [b.tolist() for b in model.module.buffers()]


@pytest.mark.parametrize("wrapper", [DDP, lambda model: ShardedDataParallel(model, zero_1(model))])
def test_buffers_are_sent_after_forwards_that_send_gradients(wrapper):
    found = launch(forwards_that_send, 2, wrapper, timeout_s=100)
    assert found == launch(forwards_that_send, 2, DistributedDataParallel)


def expanded() -> str:
    model = two_layers()
    model.register_buffer("one", torch.ones(1, 1).expand(4, 4))
    with pytest.raises(RuntimeError) as error:
        DDP(model)
    return str(error.value)


def test_a_tensor_that_overlaps_itself_is_refused():
    assert all("more than one element" in told for told in launch(expanded, 2))
