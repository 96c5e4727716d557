"""Part 2 on the ranks: a small mixture of experts under FSDP; a buffer keeps the load balanced."""

import random
from collections.abc import Callable
from itertools import cycle, islice

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from grading.checks.lab7_debug.hang_on_ranks import way
from grading.judge.tensor_projections import project
from shardlab import local_device
from shardlab.measure.traffic import record_traffic

N_LAYERS, N_EXPERTS, WIDTH, N_STEPS = 3, 8, 16, 8
MICRO_BATCHES = 2, 3  # of a step, in turn
OTHER_STEPS = 2  # of a model that is trained before
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

    def step(loads: list[int], micro_batches: int) -> list[tuple[Tensor, Tensor]]:
        experts = torch.arange(N_EXPERTS).repeat_interleave(torch.tensor(loads))
        experts = experts.roll(int(torch.randint(len(experts), (), generator=draw))).chunk(world_size)
        shuffled = [mine[torch.randperm(len(mine), generator=draw)] for mine in experts][rank]
        noise = torch.randn(world_size, len(shuffled), WIDTH, generator=draw)[rank] / 20
        x = noise + F.one_hot(shuffled, WIDTH)
        return [(x.to(device), torch.tanh(x @ target).to(device)) for x in x.chunk(micro_batches)]

    return [step(loads, n) for loads, n in zip(planned_loads(seed), cycle(MICRO_BATCHES), strict=False)]


def experts(implementation, seed: int) -> dict:
    """Run the repaired training; return this rank's biases, the weights' way, and what was sent.

    Another model is trained for some steps first, and must not matter.
    """
    mine = steps(seed, dist.get_rank(), dist.get_world_size(), local_device())
    implementation(*_training(seed + 1), mine[:OTHER_STEPS], speed=speed_of(seed + 1))
    model, optimizer = _training(seed)
    before = project(model.named_parameters(), seed)
    with record_traffic() as traffic:
        implementation(model, optimizer, mine, speed=speed_of(seed))
    return {
        "biases": [[round(float(b), 7) for b in layer.bias] for layer in model.layers],
        "way": way(before, project(model.named_parameters(), seed)),
        "collectives": [[c.kind, max(c.input_bytes, c.output_bytes)] for c in traffic.collectives],
    }


def _training(seed: int) -> tuple[ExpertModel, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = ExpertModel(N_LAYERS, WIDTH, N_EXPERTS).to(local_device())
    with torch.no_grad():  # a token of the first layer goes to the expert of its largest coordinate
        model.layers[0].router.weight.copy_(4 * torch.eye(N_EXPERTS, WIDTH))
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def unbalanced(model, optimizer, steps, speed) -> None:
    """Train and never change a bias: what is sent is FSDP's own."""
    for micro_batches in steps:
        _train(model, optimizer, micro_batches)


def _train(model, optimizer, micro_batches: list[tuple[Tensor, Tensor]]) -> None:
    for x, y in micro_batches:
        (F.mse_loss(model(x), y) / len(micro_batches)).backward()
    optimizer.step()
    optimizer.zero_grad()


class Truth:
    """A training that sends no load: each rank counts every rank's tokens by itself, in forwards that nobody trains on.

    `decide(loads, mine)` returns the sign that each expert's bias moves by, from the loads by rank.
    """

    def __init__(self, seed: int, decide: Callable[[Tensor, int], Tensor]) -> None:
        ranks, device = range(dist.get_world_size()), local_device()
        self.of_ranks, self.decide = [steps(seed, rank, len(ranks), device) for rank in ranks], decide

    def __call__(self, model, optimizer, mine, speed) -> None:
        for of_ranks in islice(zip(*self.of_ranks, strict=True), len(mine)):  # one step, by rank
            loads = torch.stack([self._loads(model, micro_batches) for micro_batches in of_ranks])
            _train(model, optimizer, of_ranks[dist.get_rank()])
            for i, layer in enumerate(model.layers):
                layer.bias += speed * self.decide(loads[:, i], dist.get_rank())

    @staticmethod
    @torch.no_grad()
    def _loads(model, micro_batches) -> Tensor:
        """Return how many of these tokens go to each expert of each layer: (layers, experts)."""
        for layer in model.layers:
            layer.load.zero_()
        for x, _ in micro_batches:
            model(x)
        return torch.stack([layer.load for layer in model.layers])


def _sign(loads: Tensor) -> Tensor:
    """Return the sign for each expert: up if it has less than the mean."""
    return (loads.mean(-1, keepdim=True) - loads).sign()


DECISIONS = {  # the right one, and usual mistakes
    "by all": lambda loads, mine: _sign(loads.sum(0)),
    "by rank 0": lambda loads, mine: _sign(loads[0]),
    "alone": lambda loads, mine: _sign(loads[mine]),
    "mean of decisions": lambda loads, mine: _sign(loads).mean(0),
}


def experts_truth(implementation, seed: int, decision: str) -> dict:
    """Return what `experts` replies of a training whose biases follow `decision`; `implementation` is not used."""
    return experts(Truth(seed, DECISIONS[decision]), seed)
