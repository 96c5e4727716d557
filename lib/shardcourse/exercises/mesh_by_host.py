"""The check of lesson 10a's exercise: a function that refuses a mesh whose shard groups mix nodes."""

from collections.abc import Callable

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from shardlab import LaunchError, launch

CheckMesh = Callable[[DeviceMesh, str], None]
_TRIALS = {  # what it is: (mesh, each rank's host, the group that mixes nodes)
    "a copy in each node": ([[0, 1], [2, 3]], "aabb", None),
    "one copy over all nodes": ([[0, 1, 2, 3]], "aabb", None),
    "the mesh the wrong way": ([[0, 2], [1, 3]], "aabb", (0, 2)),
    "ranks dealt to hosts in turn": ([[0, 1], [2, 3]], "abab", (0, 1)),
    "only the second group mixes nodes": ([[0, 1], [2, 3]], "aaab", (2, 3)),
}


def problems(check_mesh: CheckMesh, timeout_s: float = 10) -> list[str]:
    """Return what is wrong with a reader's `check_mesh(mesh, host)`, in words; an empty list if nothing is."""
    try:
        ranks = launch(_try, 4, check_mesh, timeout_s=timeout_s, stream=False, device="cpu")
    except LaunchError as error:
        waits = "some ranks wait for ever: all ranks must call the same collectives"
        return [waits if error.timed_out else str(error).splitlines()[0]]
    return [f"{name}: {p}" for name in _TRIALS if (p := _problem([r[name] for r in ranks], _TRIALS[name][2]))]


def _try(check_mesh: CheckMesh) -> dict[str, str]:
    """Return the error's text of each trial, or ""."""
    found = {}
    for name, (rows, hosts, _) in _TRIALS.items():
        mesh = DeviceMesh("cpu", rows, mesh_dim_names=("replicate", "shard"))
        try:
            check_mesh(mesh, hosts[dist.get_rank()])
            found[name] = ""
        except RuntimeError as error:
            found[name] = str(error) or "no words"
    return found


def _problem(said: list[str], group: tuple[int, int] | None) -> str:
    if group is None:
        return f"it is a good mesh, but it raises: {max(said)}" if any(said) else ""
    if silent := [rank for rank, text in enumerate(said) if not text]:
        return f"rank {silent[0]} raises no RuntimeError: every rank should, or the others wait"
    unnamed = [rank for rank, text in enumerate(said) if not all(str(member) in text for member in group)]
    return f"the error on rank {unnamed[0]} does not name the group {list(group)}" if unnamed else ""
