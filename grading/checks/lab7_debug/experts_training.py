"""Part 2 on the ranks: a small mixture of experts whose balance is kept by a buffer, under FSDP."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from grading.judge.fingerprints import project
from shardlab import local_device
from shardlab.measure.traffic import record_traffic

N_LAYERS, N_EXPERTS, WIDTH, TOKENS, MICRO_BATCHES, N_STEPS, SPEED = 3, 8, 16, 48, 2, 8, 0.01


class Experts(nn.Module):
    """Each token goes to the one expert whose score plus bias is largest; `load` counts them."""

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
    """Each rank has tokens of its own kind: their centre is the rank's."""
    centre = torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed * 101 + rank))
    draw = torch.Generator().manual_seed(seed * 1_000 + rank)
    target = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(seed)) * WIDTH**-0.5

    def micro_batch() -> tuple[Tensor, Tensor]:
        x = centre + torch.randn(TOKENS, WIDTH, generator=draw)
        return x.to(device), torch.tanh(x @ target).to(device)

    return [[micro_batch() for _ in range(MICRO_BATCHES)] for _ in range(N_STEPS)]


def experts(implementation, seed: int) -> dict:
    """The biases of this rank after the repaired training, its weights, and what was sent in it."""
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
    """Our own repair. `share(load)` in its place makes the usual mistakes."""
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
    """A known mistake: all ranks agree, on what rank 0 has seen."""
    reference(model, optimizer, steps, speed, share=lambda loads: dist.broadcast(loads, 0))
