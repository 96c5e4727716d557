"""Part 2 on the ranks: a small mixture of experts under FSDP; a buffer keeps the load balanced."""

import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from grading.checks.lab7_debug.hang_training import way
from grading.judge.tensor_projections import project
from shardlab import local_device
from shardlab.measure.traffic import record_traffic

N_LAYERS, N_EXPERTS, WIDTH, MICRO_BATCHES, N_STEPS = 3, 8, 16, 2, 8
SPEEDS = (0.003, 0.005, 0.008, 0.012)  # not the notebook's
MEAN_LOAD = 600  # tokens an expert and step: bfloat16 can't tell it from the next whole numbers


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


def speed_of(seed: int) -> float:
    return SPEEDS[seed % len(SPEEDS)]


def planned_loads(seed: int) -> list[list[int]]:
    """Return for each step how many tokens of all ranks the first layer sends to each expert.

    In each step two experts get exactly the mean, and four almost as many.
    """
    draw = random.Random(seed)

    def loads() -> list[int]:
        far = draw.randint(20, 200)
        return draw.sample([MEAN_LOAD + d for d in (0, 0, 1, -1, 2, -2, far, -far)], N_EXPERTS)

    return [loads() for _ in range(N_STEPS)]


def steps(seed: int, rank: int, world_size: int, device) -> list[list[tuple[Tensor, Tensor]]]:
    """Return this rank's micro-batches of every step. A rank sees tokens of few experts."""
    draw = torch.Generator().manual_seed(seed)
    target = torch.randn(WIDTH, WIDTH, generator=draw) * WIDTH**-0.5

    def step(loads: list[int]) -> list[tuple[Tensor, Tensor]]:
        experts = torch.arange(N_EXPERTS).repeat_interleave(torch.tensor(loads))
        experts = experts.roll(int(torch.randint(len(experts), (), generator=draw))).chunk(world_size)
        shuffled = [mine[torch.randperm(len(mine), generator=draw)] for mine in experts][rank]
        noise = torch.randn(world_size, len(shuffled), WIDTH, generator=draw)[rank] / 20
        x = noise + F.one_hot(shuffled, WIDTH)
        return [(x.to(device), torch.tanh(x @ target).to(device)) for x in x.chunk(MICRO_BATCHES)]

    return [step(loads) for loads in planned_loads(seed)]


def experts(implementation, seed: int) -> dict:
    """Run the repaired training; return this rank's biases, the weights' way, and what was sent."""
    torch.manual_seed(seed)
    model = ExpertModel(N_LAYERS, WIDTH, N_EXPERTS).to(local_device())
    with torch.no_grad():  # a token of the first layer goes to the expert of its largest coordinate
        model.layers[0].router.weight.copy_(4 * torch.eye(N_EXPERTS, WIDTH))
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = project(model.named_parameters(), seed)
    mine = steps(seed, dist.get_rank(), dist.get_world_size(), local_device())
    with record_traffic() as traffic:
        implementation(model, optimizer, mine, speed=speed_of(seed))
    return {
        "biases": [[round(float(b), 7) for b in layer.bias] for layer in model.layers],
        "way": way(before, project(model.named_parameters(), seed)),
        "collectives": [[c.kind, max(c.input_bytes, c.output_bytes)] for c in traffic.collectives],
    }


def reference(model, optimizer, steps, speed, share=dist.all_reduce, decide=torch.sign) -> None:
    """Train with our own repair. `share(loads)` and `decide(mean - load)` can be replaced to make usual mistakes."""
    for micro_batches in steps:
        for x, y in micro_batches:
            (F.mse_loss(model(x), y) / len(micro_batches)).backward()
        optimizer.step()
        optimizer.zero_grad()
        loads = torch.stack([layer.load for layer in model.layers])
        share(loads)
        for layer, load in zip(model.layers, loads, strict=True):
            layer.bias += speed * decide(load.mean() - load)
            layer.load.zero_()


def from_rank_0(model, optimizer, steps, speed) -> None:
    """Train with a known mistake: all ranks use rank 0's load."""
    reference(model, optimizer, steps, speed, share=lambda loads: dist.broadcast(loads, 0))


def each_alone(model, optimizer, steps, speed) -> None:
    """Train with a known mistake: each rank uses its own load."""
    reference(model, optimizer, steps, speed, share=lambda loads: None)


def mean_of_decisions(model, optimizer, steps, speed) -> None:
    """Train with a known mistake: each rank decides by its own load, and the mean of the decisions is taken."""

    def decide(difference: Tensor) -> Tensor:
        dist.all_reduce(mean := difference.sign())
        return mean / dist.get_world_size()

    reference(model, optimizer, steps, speed, share=lambda loads: None, decide=decide)
