"""Part 4 on the ranks: a run with all the state of a real one; the submission saves and resumes it."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor

from grading.checks import random_state_digest
from grading.checks.lab7_debug.hang_on_ranks import build, sharded
from grading.judge.tensor_projections import project
from shardlab import local_device
from shardlab.measure.traffic import record_traffic
from shardlab.text_batches import batch

N_SAMPLES, GLOBAL_BATCH, SEQ_LEN, DECAY = 84, 12, 24, 0.8


class Samples:
    """A data set of `n` samples, in another order each epoch. `epoch` and `taken` (in this epoch) are its position."""

    def __init__(self, seed: int, n: int) -> None:
        self.seed, self.n, self.epoch, self.taken = seed, n, 0, 0

    def next(self, count: int) -> list[int]:
        """Return the numbers of the next `count` samples, for all ranks together."""
        if self.taken + count > self.n:
            self.epoch, self.taken = self.epoch + 1, 0
        order = torch.randperm(self.n, generator=torch.Generator().manual_seed(self.seed * 1_000 + self.epoch))
        self.taken += count
        return order[self.taken - count : self.taken].tolist()


class Run:
    """Everything that a step reads and changes: model, optimizer, scheduler, average, samples, torch's random state."""

    def __init__(self, seed: int, weights_seed: int, dropout: float, n_steps: int) -> None:
        rank, device = dist.get_rank(), local_device()
        self.model = sharded(build(weights_seed).to(device))
        self.model.embedding.register_forward_hook(lambda m, args, out: F.dropout(out, dropout, dropout > 0))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1, (step + 1) / 4) * (1 - step / (2 * n_steps))
        )
        self.average = {name: p.detach().clone() for name, p in self.model.named_parameters()}  # the weights' average
        self.samples, self.text_seed = Samples(seed, N_SAMPLES), seed
        torch.manual_seed(1_000 * weights_seed + rank)

    def step(self) -> float:
        """Take a step and return the mean loss over all ranks."""
        rank, world_size = dist.get_rank(), dist.get_world_size()
        numbers = self.samples.next(GLOBAL_BATCH)[rank::world_size]
        tokens, targets = (torch.cat(parts) for parts in zip(*map(self._sample, numbers), strict=True))
        loss = self.model(tokens, targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        with torch.no_grad():
            for name, p in self.model.named_parameters():
                self.average[name].lerp_(p, 1 - DECAY)
        dist.all_reduce(mean := loss.detach() / world_size)
        return mean.item()

    def _sample(self, number: int) -> tuple[Tensor, Tensor]:
        return batch(self.text_seed, number, 0, 1, global_batch=1, seq_len=SEQ_LEN, device=local_device())


def interrupted(implementation, name: str, seed: int, dropout: float, stop: int, last: int) -> dict:
    """Save after `stop` steps and go on to `last`: the state that a resumed run has to reach.

    `state` is from before `save`, `kept` from after it; `sent` are the bytes of its largest collectives' buffers.
    Another run is saved first, after one step, and must not matter.
    """
    folder, other = _folder(name), Run(seed + 1, weights_seed=seed + 1, dropout=dropout, n_steps=last)
    other.step()
    implementation(_folder(f"{name}-of-another-run")).save(other)
    run = Run(seed, weights_seed=seed, dropout=dropout, n_steps=last)
    for _ in range(stop):
        run.step()
    state, checkpoint = _state(run), implementation(folder)
    with record_traffic() as traffic:
        checkpoint.save(run)
    sent = sum(max(c.input_bytes, c.output_bytes) for c in traffic.collectives)
    saved = {"state": state, "kept": _state(run), "sent": sent, "written": _written(folder)}
    return saved | _go_on(run, seed, last - stop)


class Unsaved:
    """Stand-in for a submission: its run is never saved."""

    def __init__(self, folder: str) -> None: ...

    def save(self, run: Run) -> None: ...


def resumed(implementation, name: str, seed: int, dropout: float, stop: int, last: int) -> dict:
    """Load the saved run in another process, with other weights and random numbers, and go on to `last`."""
    run = Run(seed, weights_seed=seed + 1, dropout=dropout, n_steps=last)
    implementation(_folder(name)).load(run)
    return {"kept": _state(run)} | _go_on(run, seed, last - stop)


def _state(run: Run) -> dict:
    """Return sums over ranks of what a step reads, and this rank's random state, by name; they only tell causes."""
    states = [(p, run.optimizer.state.get(p, {})) for p in run.model.parameters()]
    parts = {
        "the weights": [p for p, _ in states],
        "the average of the weights": list(run.average.values()),
        "AdamW's averages of gradients": [state.get("exp_avg") for _, state in states],
        "AdamW's averages of squared gradients": [state.get("exp_avg_sq") for _, state in states],
        "AdamW's counts of steps": [state.get("step") for _, state in states],
    }
    sums = torch.stack([_sums(tensors) for tensors in parts.values()])
    dist.all_reduce(sums)
    found = dict(zip(parts, sums.tolist(), strict=True))
    found["AdamW's counts of steps"] = [x / dist.get_world_size() for x in found["AdamW's counts of steps"]]
    return found | {"the random state": random_state_digest.digest()}


def _sums(tensors: list) -> Tensor:
    """Return sums of this rank's parts, and of their squares, weighted by the tensors' numbers."""
    total = torch.zeros(2, dtype=torch.float64, device=local_device())
    for i, t in enumerate(tensors):
        if isinstance(t, Tensor):
            local = (t.to_local() if isinstance(t, DTensor) else t).detach().double().to(total.device)
            total += (i + 1) * torch.stack([local.sum(), local.square().sum()])
    return total


def _go_on(run: Run, seed: int, count: int) -> dict:
    rates, losses = [], []
    for _ in range(count):
        rates.append(run.optimizer.param_groups[0]["lr"])
        losses.append(run.step())
    return {
        "rates": rates,
        "losses": losses,
        "weights": project(run.model.named_parameters(), seed),
        "average": project(run.average.items(), seed),
        "samples": [run.samples.epoch, run.samples.taken],
    }


def _folder(name: str) -> str:
    """Return a folder among these ranks' temporary files, which outlast the ranks."""
    folder = os.path.join(tempfile.gettempdir(), name)
    os.makedirs(folder, exist_ok=True)
    return folder


def _written(folder: str) -> int:
    """Return the bytes of the largest file."""
    dist.barrier()
    return max((os.path.getsize(os.path.join(at, f)) for at, _, files in os.walk(folder) for f in files), default=0)
