"""The two tools on the ranks: a diagnosis of records, and a search for tensors that differ between ranks."""

from itertools import chain
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
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
    """A model with tensors of every sort: sharded, whole, frozen, of several types, persistent or not.

    One is a scalar, and one is transposed, so that its numbers do not lie in the order of its rows.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(48, 64)
        self.second = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8))
        self.frozen = nn.Parameter(torch.randn(24), requires_grad=False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("mean", torch.randn(40).bfloat16())
        self.register_buffer("count", torch.arange(12))
        self.register_buffer("mask", torch.zeros(9), persistent=False)
        self.register_buffer("turned", torch.randn(6, 4).T)
        self.register_buffer("used", torch.arange(5) > 2)


WHOLE = ("frozen", "scale", "mean", "count", "mask", "turned", "used")
SHARDED = ("first.weight", "second.0.weight", "second.1.weight", "first.bias", "second.0.bias", "second.1.bias")


def search(implementation, seed: int, altered: list, layouts: list[bool]) -> dict:
    """Return what the submission finds in the second of two calls, and the bytes that it sends in the larger one.

    In the first call nothing is altered yet.

    `altered`: [name, rank, how, where] of each tensor that one rank holds differently, `where` from 0 (its first byte
    or number) to 1. `layouts`: for the inner and the outer unit, whether neighbouring ranks hold the same part.
    """
    torch.manual_seed(seed)
    zoo = Zoo().to(local_device())
    whole = {zoo.frozen, zoo.scale}
    fully_shard(zoo.second, mesh=_mesh(layouts[0]))
    fully_shard(zoo, mesh=_mesh(layouts[1]), ignored_params=whole)
    tensors = dict(chain(zoo.named_parameters(), zoo.named_buffers()))
    n_bytes = []
    for alterations in ([], altered):
        with torch.no_grad():
            for name, rank, how, where in alterations:
                if dist.get_rank() == rank:
                    alter(tensors[name], how, where)
        with record_traffic() as traffic:
            found = read(implementation(zoo), "a list of names", _names)
        n_bytes.append(sum(c.input_bytes for c in traffic.collectives))
    return {
        "found": found,
        "bytes": max(n_bytes),
        "tensors": len(tensors),
    }


def _mesh(neighbours_are_alike: bool) -> DeviceMesh:
    """Return a mesh of two replicas; of four ranks, 0 and 1 hold the same part, or 0 and 2."""
    ranks = torch.arange(dist.get_world_size())
    ranks = ranks.view(-1, 2).T if neighbours_are_alike else ranks.view(2, -1)
    return DeviceMesh(local_device().type, ranks, mesh_dim_names=("replicate", "shard"))


def _names(found) -> list[str]:
    if isinstance(found, str):
        raise TypeError
    return [str(name) for name in found]


def alter(t: Tensor, how: str, where: float) -> None:
    """Change a few bits of this rank's part of the tensor."""
    t = (t.to_local() if isinstance(t, DTensor) else t).reshape(-1)
    if how in ("even byte", "odd byte"):
        i = round(where * (t.numel() * t.element_size() - 2)) // 2 * 2
        t.view(torch.uint8)[i + (how == "odd byte")] ^= 1
    elif how == "order":  # the same numbers, in another order
        i = round(where * (t.numel() - 1))
        j = next(j for j in range(t.numel()) if t[j] != t[i])
        t[[i, j]] = t[[j, i]]
    elif how == "sign":  # the sign of a zero
        t[round(where * (t.numel() - 1))] = -0.0
