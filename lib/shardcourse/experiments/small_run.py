"""A small sharded training run that lessons 11a and 11b save, kill and resume, and a digest of its state."""

from hashlib import sha256

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from shardlab.launch import local_device
from shardlab.model import Transformer, preset
from shardlab.text_batches import batch


def sharded(seed: int = 0, device: torch.device | str | None = None) -> tuple[nn.Module, Optimizer]:
    """Return a model of 1M parameters, sharded block by block with torch's FSDP2, and its AdamW.

    `seed` chooses the first weights. `device` is this rank's own if left out.
    """
    device = torch.device(device or local_device())
    torch.manual_seed(seed)
    model = Transformer(preset("1M")).to(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(model: nn.Module, optimizer: Optimizer, first: int, last: int, seed: int = 0) -> list[float]:
    """Run steps `first` to `last` - 1; return the loss of each global batch, the same on every rank.

    A global batch has 12 samples. They follow from the seed and the step alone, whatever the number of ranks.
    """
    rank, world_size, losses = dist.get_rank(), dist.get_world_size(), []
    device = next(model.parameters()).device
    for step in range(first, last):
        tokens, targets = batch(seed, step, rank, world_size, global_batch=12, seq_len=32, device=device)
        optimizer.zero_grad()
        loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        dist.all_reduce(mean := loss.detach() / world_size)
        losses.append(mean.item())
    return losses


def fingerprint(model: nn.Module, optimizer: Optimizer) -> str:
    """Return a digest of all bytes of the weights and of the optimizer's states. Call it on every rank."""
    digest = sha256()
    for p in model.parameters():
        for t in (p, *(v for _, v in sorted(optimizer.state.get(p, {}).items()) if torch.is_tensor(v))):
            digest.update(_whole(t).numpy().tobytes())
    return digest.hexdigest()[:12]


def _whole(t: Tensor) -> Tensor:
    return (t.full_tensor() if isinstance(t, DTensor) else t).detach().cpu()
