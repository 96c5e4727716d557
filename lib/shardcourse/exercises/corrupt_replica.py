"""Check of lesson 22's exercise: find the ranks whose shards differ from those of the other replicas."""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from shardlab import LaunchError, launch
from shardlab.measure.traffic import record_traffic

REPLICAS, SHARDS, MOST_BYTES = 3, 2, 1000
Suspects = Callable[[nn.Module, DeviceMesh], list[int]]  # the reader's function
Found = tuple[object, int]  # what the reader's function returned, and the bytes that this rank sent
# What happens to which ranks, who is corrupt, and the likely mistake of who finds others.
CASES: dict[str, tuple[dict[int, str], list[int], str]] = {
    "Nothing is corrupt": ({}, [], "ranks of one replica hold different shards: compare ranks with the same shard"),
    "Rank 3 has a flipped bit": ({3: "bit"}, [3], "is every bit of every shard in the fingerprint?"),
    "Rank 0 has a flipped bit": ({0: "bit"}, [0], "replica 0 may be the corrupt one: take a majority"),
    "Rank 4 has two exchanged weights": ({4: "exchanged"}, [4], "a plain sum does not see the order"),
    "Rank 2 has a zero with a sign": ({2: "zero"}, [2], "-0.0 equals 0.0: compare bits, not numbers"),
    "Ranks 1 and 2 have a flipped bit": ({1: "bit", 2: "bit"}, [1, 2], "each shard has a vote of its own"),
    "Ranks 1, 3 and 5 all differ": ({1: "bit", 3: "other bit", 5: "exchanged"}, [1, 3, 5], "no majority: name all"),
}


def check_suspects(suspects: Suspects) -> str:
    """Return in words what is wrong with `suspects(model, mesh)`, or that it is right. Six ranks: 3 replicas of 2."""
    try:
        ranks = launch(partial(_tried, suspects), REPLICAS * SHARDS, device="cpu", stream=False)
    except LaunchError as error:
        return f"It fails. {str(error).strip().splitlines()[-1]}"
    for case, (_, expected, hint) in CASES.items():
        names, sent = [found[case][0] for found in ranks], max(found[case][1] for found in ranks)
        if others := [rank for rank, named in enumerate(names) if named != names[0]]:
            return (
                f"{case}: rank 0 returns {names[0]}, rank {others[0]} returns {names[others[0]]}. "
                "All ranks need the same list, or some of them stop and others do not."
            )
        if names[0] != expected:
            return f"{case}: your list is {names[0]}, not {expected}. Think: {hint}"
        if sent > MOST_BYTES:
            return f"Your list is right, but a rank sends {sent} bytes: a fingerprint has 8."
    return "Right: every corrupt rank is named, by all ranks, for some bytes."


def _tried(suspects: Suspects) -> dict[str, Found]:
    found: dict[str, Found] = {}
    mesh = init_device_mesh("cpu", (REPLICAS, SHARDS), mesh_dim_names=("replicate", "shard"))
    for case, (corrupt, _, _) in CASES.items():
        torch.manual_seed(0)
        model = fully_shard(nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 16)), mesh=mesh)
        rows = model[1].weight.to_local().detach()
        rows[0, :2] = torch.tensor([0.0, 1.0])
        if dist.get_rank() in corrupt:
            _corrupt(rows, corrupt[dist.get_rank()])
        with record_traffic() as traffic:
            named = suspects(model, mesh)
        found[case] = named, int(traffic.sent_bytes())
    return found


def _corrupt(rows: Tensor, how: str) -> None:
    bits = rows.view(torch.int32)
    if how == "exchanged":
        rows[0, :2] = rows[0, :2].flip(0)
    elif how == "zero":
        bits[0, 0] ^= -(2**31)
    else:
        bits[-1, -1] ^= 1 if how == "bit" else 2
