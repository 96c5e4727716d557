"""Part 1 on the ranks: trainings under FSDP with a guard against broken batches and a validation."""

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from grading.checks.lab7_debug.returned_values import read
from grading.judge.tensor_projections import project
from shardlab import local_device
from shardlab.model import Transformer, preset
from shardlab.text_batches import batch

SAMPLES, SEQ_LEN = 2, 24


def build(seed: int, n_layers: int = 2) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(preset("1M", n_layers=n_layers))


def sharded(model: nn.Module) -> nn.Module:
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def optimizer_of(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def batches(seed: int, rank: int, world_size: int, run: dict, device="cpu") -> list[tuple]:
    """Return this rank's batch of every step of a run. `padded`: the steps and ranks whose targets do not count."""
    found = []
    for step in range(run["n_steps"]):
        tokens, targets = batch(
            seed, step, rank, world_size, global_batch=SAMPLES * world_size, seq_len=SEQ_LEN, device=device
        )
        found.append((tokens, torch.full_like(targets, -100) if [step, rank] in run["padded"] else targets))
    return found


def documents(seed: int, count: int) -> Tensor:
    tokens, targets = batch(seed, 1_000, 0, 1, global_batch=count, seq_len=SEQ_LEN)
    return torch.cat([tokens, targets[:, -1:]], 1)


class Observer:
    """Hooks on the sharded model: notes each forward pass, and makes the loss of some batches infinite.

    `passes`: (step of the batch that it is, or -1; rows; is a graph built?) of each, in order.
    """

    def __init__(self, model: nn.Module, batches: list[tuple], infinite: list[int]) -> None:
        self.passes: list[tuple[int, int, bool]] = []
        self._batches, self._infinite = batches, infinite
        model.register_forward_hook(self._note, with_kwargs=True)

    def _note(self, module, args: tuple, kwargs: dict, out: Tensor) -> Tensor | None:
        tokens = args[0] if args else next(iter(kwargs.values())) if "tokens_BT" not in kwargs else kwargs["tokens_BT"]
        step = next((i for i, (due, _) in enumerate(self._batches) if torch.equal(tokens, due)), -1)
        self.passes.append((step, len(tokens), torch.is_grad_enabled()))
        return out * math.inf if step in self._infinite else None


def trainings(implementation, seed: int, runs: list[dict]) -> list[dict]:
    """Run the repaired training several times; return each time its result, the weights' way, and forward passes."""
    rank, world_size, device = dist.get_rank(), dist.get_world_size(), local_device()
    replies = []
    for run in runs:
        model = sharded(build(seed).to(device))
        before = project(model.named_parameters(), seed)
        mine = batches(seed, rank, world_size, run, device)
        observer = Observer(model, mine, [step for step, r in run["infinite"] if r == rank])
        returned = implementation(
            model,
            optimizer_of(model, run["lr"]),
            mine,
            documents(seed, run["n_documents"]).to(device),
            batch_size=run["batch_size"],
            every=run["every"],
            max_norm=run["max_norm"],
        )
        skipped, validation = read(returned, "(skipped, validation), a list and a dictionary", _skipped_and_validation)
        replies.append(
            {
                "skipped": skipped,
                "validation": validation,
                "way": way(before, project(model.named_parameters(), seed)),
                "passes": observer.passes,
            }
        )
    return replies


def way(before: dict[str, list[float]], after: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return how far each projection has moved: an update that is missing shows more than in the weights."""
    return {name: [b - a for a, b in zip(before[name], after[name], strict=True)] for name in before}


def _skipped_and_validation(returned) -> tuple[list[int], dict[str, float]]:
    skipped, validation = returned
    return [int(step) for step in skipped], {str(int(step)): float(loss) for step, loss in validation.items()}


def unguarded(model, optimizer, batches, documents, batch_size, every, max_norm):
    """Train as if no loss could be infinite, and without validation: only its time counts."""
    for tokens, targets in batches:
        loss = model(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()
    return [], {}
