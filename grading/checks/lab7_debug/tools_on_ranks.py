"""The two tools on the ranks: a diagnosis of records, and a search for tensors that differ between ranks."""

from itertools import chain
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from grading.checks.lab7_debug.returned_values import read
from shardlab import local_device
from shardlab.measure.traffic import record_traffic


class Call(NamedTuple):
    """One collective, as a rank's recorder has it."""

    axis: str
    ranks: tuple[int, ...]
    seq: int
    call: str
    finished: bool


def diagnoses(implementation, records: list) -> list[list]:
    """Return the submission's diagnosis of each run."""
    found = []
    for run in records:
        logs = {
            r: [Call(axis, tuple(m), seq, call, done) for axis, m, seq, call, done in log] for r, log in enumerate(run)
        }
        try:
            found.append(read(implementation(logs), "(rank, axis, seq)", _place))
        except Exception as error:  # of this run only; the other runs still count
            found.append([-1, f"{type(error).__name__}: {error}", -1])
    return found


def _place(returned) -> list:
    rank, axis, seq = returned
    return [int(rank), str(axis), int(seq)]


class Zoo(nn.Module):
    """A model with tensors of every sort: sharded, whole, frozen, of several types, persistent or not, and a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(48, 64)
        self.second = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8))
        self.frozen = nn.Parameter(torch.randn(24), requires_grad=False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("mean", torch.randn(40).bfloat16())
        self.register_buffer("count", torch.arange(12))
        self.register_buffer("mask", torch.zeros(9), persistent=False)


WHOLE = ("frozen", "scale", "mean", "count", "mask")
SHARDED = ("first.weight", "second.0.weight", "second.1.weight", "first.bias", "second.0.bias", "second.1.bias")


def search(implementation, seed: int, altered: list) -> dict:
    """Return what the submission finds. `altered`: [name, rank, how] of each tensor that one rank holds differently."""
    n = dist.get_world_size()
    torch.manual_seed(seed)
    zoo = Zoo().to(local_device())
    mesh = dist.init_device_mesh(local_device().type, (2, n // 2), mesh_dim_names=("replicate", "shard"))
    whole = {zoo.frozen, zoo.scale}
    fully_shard(zoo.second, mesh=mesh)
    fully_shard(zoo, mesh=mesh, ignored_params=whole)
    tensors = dict(chain(zoo.named_parameters(), zoo.named_buffers()))
    with torch.no_grad():
        for name, rank, how in altered:
            if dist.get_rank() == rank:
                _alter(tensors[name], how)
    with record_traffic() as traffic:
        found = implementation(zoo)
    return {
        "found": read(found, "a list of names", _names),
        "bytes": sum(c.input_bytes for c in traffic.collectives),
        "tensors": len(tensors),
    }


def _names(found) -> list[str]:
    if isinstance(found, str):
        raise TypeError
    return [str(name) for name in found]


def _alter(t: Tensor, how: str) -> None:
    t = (t.to_local() if isinstance(t, DTensor) else t).reshape(-1)
    if how == "last bit":
        t.view(torch.uint8)[-1] ^= 1
    elif how == "order":  # the same numbers, in another order
        t.copy_(t.flip(0))
    elif how == "sign":  # the sign of a zero
        t[0] = -0.0
