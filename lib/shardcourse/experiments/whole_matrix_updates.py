"""Training with Muon on whole or sharded matrices: what lesson 21 compares and counts."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from shardlab.measure.traffic import record_traffic
from shardlab.model import ModelConfig, Transformer, preset
from shardlab.text_batches import batch

CONFIG = preset("1M", n_layers=2)
NS_STEPS = 5


@dataclass(frozen=True)
class Trained:
    """What a rank has after some steps. `changes`: by how much they changed each matrix."""

    changes: list[Tensor]
    kinds: dict[str, int]  # of the collectives in the optimizer's last step
    sent: float  # bytes that this rank sent in it
    state_bytes: int  # that the optimizer of the matrices keeps on this rank


def train(make_optimizer: Callable[[list], torch.optim.Optimizer], seed: int = 0, steps: int = 3) -> Trained:
    """Train with `make_optimizer(matrices)`, and with AdamW for all other parameters; sharded if there are ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    model = Transformer(CONFIG)
    if ranks > 1:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    params = matrices(model)
    optimizer = make_optimizer(params)
    mine = {id(p) for p in params}
    others = torch.optim.AdamW([p for p in model.parameters() if id(p) not in mine], lr=3e-3, foreach=False)
    start = whole(params)
    for step in range(steps):
        model.zero_grad()
        model(*batch(seed, step, rank, ranks, global_batch=4, seq_len=32)).backward()
        with record_traffic() as traffic:
            optimizer.step()
        others.step()
    changes = [b - a for a, b in zip(start, whole(params), strict=True)]
    return Trained(changes, dict(traffic.kinds()), traffic.sent_bytes(), state_bytes(optimizer))


def matrices(model: nn.Module) -> list[nn.Parameter]:
    """Return the matrices of the blocks: Muon's share of the parameters."""
    return [p for name, p in model.named_parameters() if name.startswith("blocks") and p.ndim == 2]


def whole(params: list[Tensor]) -> list[Tensor]:
    return [(p.full_tensor() if isinstance(p, DTensor) else p).detach().clone() for p in params]


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the optimizer's matrices on this rank."""
    states = [t for state in optimizer.state.values() for t in state.values() if t.ndim == 2]
    return sum((t.to_local() if isinstance(t, DTensor) else t).nbytes for t in states)


def difference(found: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest relative difference of a matrix."""
    return max(((a - b).norm() / b.norm()).item() for a, b in zip(found, expected, strict=True))


def shapes(config: ModelConfig) -> list[tuple[int, int]]:
    """Return the shapes of all matrices in the blocks, in the order of the model."""
    kv_dim = config.n_kv_heads * config.head_dim
    square, key = (config.dim, config.dim), (kv_dim, config.dim)
    up, down = (config.hidden_dim, config.dim), (config.dim, config.hidden_dim)
    return [square, key, key, square, up, up, down] * config.n_layers


def newton_schulz_flops(shape: tuple[int, int]) -> int:
    """FLOPs of Newton-Schulz: in each step two products (r, c) x (c, r) and one (r, r) x (r, r), with r <= c."""
    r, c = sorted(shape)
    return NS_STEPS * (4 * r * r * c + 2 * r**3)
