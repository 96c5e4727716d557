"""Regressions of DDP and of ZeRO-2: each case behaves as under torch's DDP, or is refused by name."""

import pytest
import torch
import torch.distributed as dist
from deadlines import deadline_s
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from two_layers import sharded_sgd, two_layers

from shardlab import launch
from shardlab.ddp import DDP
from shardlab.measure.traffic import record_traffic
from shardlab.zero import ShardedDataParallel, ZeroRedundancyOptimizer

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
    torchs = launch(first_outputs, 2, DistributedDataParallel)
    assert torchs[0] == torchs[1]
    assert launch(first_outputs, 2, DDP) == torchs


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


@pytest.mark.parametrize("wrapper", [DDP, lambda model: ShardedDataParallel(model, sharded_sgd(model))])
def test_buffers_are_sent_after_forwards_that_send_gradients(wrapper):
    found = launch(forwards_that_send, 2, wrapper, timeout_s=deadline_s(100))
    assert found == launch(forwards_that_send, 2, DistributedDataParallel)


def expanded() -> str:
    model = two_layers()
    model.register_buffer("one", torch.ones(1, 1).expand(4, 4))
    with pytest.raises(RuntimeError) as error:
        DDP(model)
    return str(error.value)


def test_a_tensor_that_overlaps_itself_is_refused():
    assert all("more than one element" in told for told in launch(expanded, 2))


def torchs_words() -> list[str]:
    DDP(two_layers(), device_ids=None, output_device=None)
    model = two_layers()
    ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, parameters_as_bucket_view=True, lr=0.1)
    with pytest.raises(ValueError, match="rank 0: device_ids or output_device names"):
        DDP(two_layers(), device_ids=[0])
    return ["taken"]


def test_options_of_torchs_are_taken_or_refused_by_name():
    assert launch(torchs_words, 1) == [["taken"]]
