"""Lab 11 on the ranks: the submission trains on the simulated network. Return its weights and the network's record."""

import operator
import time
from contextlib import suppress

import torch
import torch.distributed as dist
from torch import Tensor, nn

from grading.checks.lab11_slow_link.drawn_jobs import job_of
from grading.checks.lab11_slow_link.model_samples_schedule import OPTIMIZERS, Setting, build, flat_weights, samples
from grading.judge.tensor_projections import project_rows
from shardlab.measure.store_writes import store_writes
from shardsim import process_group
from shardsim.network import Network

N_DIRECTIONS = 6


class EveryStep:
    """The program that the team has: every step waits for the slow link. It knows neither rounds nor sites."""

    def __init__(self, model, optimizer, network, H, lr, momentum, late, up):
        self.model, self.optimizer = model, optimizer

    def step(self, loss, n):
        loss.backward()
        total = torch.tensor(float(n), dtype=torch.float64)
        dist.all_reduce(total)
        for p in self.model.parameters():
            dist.all_reduce(p.grad.mul_(n / total))
        self.optimizer.step()
        self.optimizer.zero_grad()

    def finish(self):
        pass


def train(implementation, words: str, runs: list) -> list[dict]:
    """Run each setting. Return the projected weights after each step and after `finish`, times, and the record.

    All objects are built before the first step: what the class keeps for all of them shows.
    """
    if not callable(implementation):
        raise TypeError(f"hand in the class, not {implementation!r:.60}: run the cell that defines it")
    network, settings = Network.parse(words, dist.get_world_size()), [Setting(*run) for run in runs]
    built = [_built(implementation, network, run) for run in settings]
    return [_one(sites, model, run) for (sites, model), run in zip(built, settings, strict=True)]


def _built(implementation, network: Network, run: Setting) -> tuple:
    model = build(run.seed, run.dtype)
    optimizer = OPTIMIZERS[run.optimizer](model.parameters())
    sites = implementation(model, optimizer, network, run.H, run.lr, run.momentum, run.late, run.up_at)
    for name in ("step", "finish"):
        if not callable(getattr(sites, name, None)):
            raise TypeError(f"{implementation!r:.60} makes {sites!r:.60}, which has no method `{name}`")
    return sites, model


def _one(sites, model: nn.Module, run: Setting) -> dict:
    rank, start = dist.get_rank(), flat_weights(build(run.seed, run.dtype))
    model.zero_grad()
    dist.barrier()
    process_group.clear()
    projections, ends_s, notes = [], [], []
    with store_writes(lambda n_bytes: notes.append(_note(rank, n_bytes))):
        for step in range(run.steps):
            x, y = (t.to(start.dtype) for t in samples(run, step, rank))
            sites.step(model(x, y), len(x))
            ends_s.append(time.monotonic())
            projections.append(project(flat_weights(model) - start, run.seed))
        sites.finish()
        projections.append(project(flat_weights(model) - start, run.seed))
    dist.barrier()
    time.sleep(0.05)  # the wire's thread writes the last entry
    return {"weights": projections, "ends_s": ends_s, "record": _record() + notes, "bytes": start.nbytes}


def _note(rank: int, n_bytes: int) -> dict:
    """Return a write into the store, as a message of this rank."""
    now_s = time.monotonic()
    return {"kind": "store", "bytes": n_bytes, "ranks": [rank], "issued_s": now_s, "finished_s": now_s}


def project(flat: Tensor, seed: int) -> list[float]:
    """Return the products of all weights with a few random directions."""
    return project_rows(flat[None], seed, N_DIRECTIONS)[0]


def _record() -> list[dict]:
    """Return what this rank's messages were, without the barriers."""
    return [
        {"kind": c.kind, "bytes": c.bytes, "ranks": c.ranks, "issued_s": c.issued_s, "finished_s": c.finished_s}
        for c in process_group.collectives()
        if c.kind != "barrier"
    ]


def choices(implementation, jobs: list[dict]) -> list[list | str]:
    """Return what the submission chooses for each job: [H, late, seconds], or what it returned in their place."""
    if not callable(implementation):
        raise TypeError(f"hand in the function choose(job), not {implementation!r:.60}")
    return [_plan(implementation(job_of(facts))) for facts in jobs]


def _plan(returned) -> list | str:
    """Numbers may be of any kind, such as numpy's or tensors without dimensions."""
    with suppress(TypeError, ValueError, RuntimeError):
        H, late, seconds = returned
        return [operator.index(H), operator.index(late), float(seconds + 0.0)]  # text has no sum
    return f"{returned!r:.60}"


REFERENCE = {"train": EveryStep}
