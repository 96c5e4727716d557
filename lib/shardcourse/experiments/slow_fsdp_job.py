"""The slow FSDP job of lesson 12: it gathers each unit late. It runs on 4 ranks, and arithmetic predicts its step.

Computing is slept, and the link is simulated (lesson 3). Gathering a block takes about as long as its forward.
"""

import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from shardlab import launch, local_device
from shardlab.model import ModelConfig, Transformer
from shardsim import closed_forms, simulated
from shardsim.closed_forms import Cluster
from shardsim.slept_computation import sleep_in
from shardsim.step_schedules import Unit, fsdp_step
from shardtrace.record_timeline import record_timeline
from shardtrace.timeline import Timeline

RANKS, BLOCKS = 4, 8
FORWARD_S, LOADER_S = 0.020, 0.060  # of a block, whose backward takes twice that; of loading a batch
LINK = Cluster(200e-6, 9e6, nodes=1, ranks_per_node=RANKS)
WORDS = "9 MB/s, 200 us"
CONFIG = ModelConfig(256, dim=64, n_layers=BLOCKS, n_heads=4, n_kv_heads=2, hidden_dim=192, max_seq_len=64)


def run(*, early_in_backward: bool = False, early_in_forward: bool = False) -> tuple[float, Timeline]:
    """Run three steps on 4 ranks. Return the seconds of the faster one of the last two, and rank 0's timeline of it."""
    early = early_in_backward, early_in_forward
    return launch(_recorded_steps, RANKS, *early, device="cpu", network=simulated(WORDS), timeout_s=120)[0]


def predict(*, early_in_backward: bool = False, early_in_forward: bool = False, compute: float = 1.0) -> Timeline:
    """Return the step by arithmetic, without the data loader. `compute` scales the time of each block's computing."""
    model = Transformer(CONFIG)
    block_bytes = [sum(p.nbytes for p in block.parameters()) for block in model.blocks]
    root_bytes = sum(p.nbytes for p in model.parameters()) - sum(block_bytes)
    blocks = [_unit(f"blocks.{i}", n_bytes, FORWARD_S * compute) for i, n_bytes in enumerate(block_bytes)]
    early = {"forward_prefetch": int(early_in_forward), "backward_prefetch": int(early_in_backward)}
    return fsdp_step(_unit("root", root_bytes, 0.0), blocks, **early)


def _unit(name: str, n_bytes: int, forward_s: float) -> Unit:
    gather_s, scatter_s = closed_forms.all_gather_s(LINK, n_bytes), closed_forms.reduce_scatter_s(LINK, n_bytes)
    return Unit(name, forward_s, 2 * forward_s, gather_s, scatter_s)


def _recorded_steps(early_in_backward: bool, early_in_forward: bool) -> tuple[float, Timeline]:
    model = _model(early_in_backward, early_in_forward)
    tokens, found = torch.zeros(1, 8, dtype=torch.long), []
    for _ in range(3):
        dist.barrier()
        began = time.perf_counter()
        with record_timeline(model) as recording:
            time.sleep(LOADER_S)
            model.zero_grad()
            model(tokens, tokens).backward()
        found.append((time.perf_counter() - began, recording.timeline))
    return min(found[1:], key=lambda one: one[0])


def _model(early_in_backward: bool, early_in_forward: bool) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(CONFIG)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for i, block in enumerate(model.blocks):
        sleep_in(block, FORWARD_S, name=f"blocks.{i}")
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    units = [model, *model.blocks]
    for i, unit in enumerate(units):
        if early_in_forward:
            unit.set_modules_to_forward_prefetch(units[i + 1 : i + 2])
        if not early_in_backward:
            unit.set_modules_to_backward_prefetch([unit])  # itself, which is there already: no other
    return model.to(local_device())
