"""Part 2 on the ranks: a small mixture of experts under FSDP; a buffer keeps the load balanced."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from grading.judge.tensor_projections import project
from shardlab import local_device
from shardlab.measure.traffic import record_traffic

N_LAYERS, N_EXPERTS, WIDTH, TOKENS, MICRO_BATCHES, N_STEPS, SPEED = 3, 8, 16, 48, 2, 8, 0.01


class Experts(nn.Module):
    """A layer that sends each token to the one expert with the largest score plus bias; `load` counts the tokens."""

    def __init__(self, width: int, n_experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, n_experts, bias=False)
        self.weight = nn.Parameter(torch.randn(n_experts, width, width) * width**-0.5)
        self.register_buffer("bias", torch.zeros(n_experts))
        self.register_buffer("load", torch.zeros(n_experts))

    def forward(self, x: Tensor) -> Tensor:  # (tokens, width)
        scores = self.router(x).sigmoid()
        expert = (scores + self.bias).argmax(-1)
        self.load += expert.bincount(minlength=len(self.load))
        out = torch.einsum("tw,twv->tv", x, self.weight[expert])
        return x + scores.gather(-1, expert[:, None]) * out


class ExpertModel(nn.Module):
    def __init__(self, n_layers: int, width: int, n_experts: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Experts(width, n_experts) for _ in range(n_layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def steps(seed: int, rank: int, device) -> list[list[tuple[Tensor, Tensor]]]:
    """Return this rank's micro-batches of every step. Each rank's tokens have their own centre."""
    centre = torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed * 101 + rank))
    draw = torch.Generator().manual_seed(seed * 1_000 + rank)
    target = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(seed)) * WIDTH**-0.5

    def micro_batch() -> tuple[Tensor, Tensor]:
        x = centre + torch.randn(TOKENS, WIDTH, generator=draw)
        return x.to(device), torch.tanh(x @ target).to(device)

    return [[micro_batch() for _ in range(MICRO_BATCHES)] for _ in range(N_STEPS)]


def experts(implementation, seed: int) -> dict:
    """Run the repaired training; return this rank's biases, the weights, and what was sent."""
    torch.manual_seed(seed)
    model = ExpertModel(N_LAYERS, WIDTH, N_EXPERTS).to(local_device())
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    mine = steps(seed, dist.get_rank(), local_device())
    with record_traffic() as traffic:
        implementation(model, optimizer, mine, speed=SPEED)
    return {
        "biases": [[round(float(b), 7) for b in layer.bias] for layer in model.layers],
        "weights": project(model.named_parameters(), seed),
        "collectives": len(traffic.collectives),
        "bytes": traffic.wire_bytes(dist.get_world_size()),
    }


def reference(model, optimizer, steps, speed, share=None) -> None:
    """Train with our own repair. `share(loads)` replaces the all_reduce to make usual mistakes."""
    for micro_batches in steps:
        for x, y in micro_batches:
            (F.mse_loss(model(x), y) / len(micro_batches)).backward()
        optimizer.step()
        optimizer.zero_grad()
        loads = torch.stack([layer.load for layer in model.layers])
        (share or dist.all_reduce)(loads)
        for layer, load in zip(model.layers, loads, strict=True):
            layer.bias += speed * (load.mean() - load).sign()
            layer.load.zero_()


def from_rank_0(model, optimizer, steps, speed) -> None:
    """Train with a known mistake: all ranks use rank 0's load."""
    reference(model, optimizer, steps, speed, share=lambda loads: dist.broadcast(loads, 0))
