"""The jobs that `choose` gets: two to four sites, their link, and a small model of what their data disagree about.

The loss of site s is 1/2 sum_j curvature[s, j] (w_j - optimum[s, j])^2, so that any schedule can be followed exactly.
"""

import math
import random
from dataclasses import dataclass

import torch
from torch import Tensor

from shardsim.network import Network

N_JOBS = 12
H_ALLOWED = (1, 2, 4, 8, 16, 32, 64)
MOST_STEPS = 1024
DIMENSIONS = 8
# A figure's range, on a logarithmic scale. Each is cut into as many parts as there are jobs, one for each.
RANGES = {
    "message_over_step": (0.3, 60.0),
    "disagreement": (0.05, 2.0),
    "part_of_the_loss_left": (0.003, 0.1),
    "step_s": (0.005, 0.02),
}
LATENCY_SHARE = (0.02, 0.9)  # of a message's time
BANDWIDTH = (20e6, 200e6)  # bytes/s


@dataclass(frozen=True)
class Job:
    """The job that `choose` gets. The notebook shows the same class."""

    network: Network
    step_s: float
    drift_bytes: int
    curvature: Tensor
    optimum: Tensor
    shares: Tensor
    inner_lr: float
    lr: float
    momentum: float
    target: float


def draw(seed: int) -> list[dict]:
    """Draw the facts of all jobs, in a form for JSON."""
    rng = random.Random(f"{seed} jobs")
    order = {name: rng.sample(range(N_JOBS), N_JOBS) for name in (*RANGES, "latency")}
    jobs = []
    for i in range(N_JOBS):
        parts = {name: (places[i] + rng.random()) / N_JOBS for name, places in order.items()}
        figures = {name: low * (high / low) ** parts[name] for name, (low, high) in RANGES.items()}
        latency_share = LATENCY_SHARE[0] + (LATENCY_SHARE[1] - LATENCY_SHARE[0]) * parts["latency"]
        jobs.append(_facts(rng, sites=2 + i % 3, latency_share=latency_share, **figures))
    return jobs


def _facts(
    rng: random.Random,
    sites: int,
    latency_share: float,
    message_over_step: float,
    disagreement: float,
    part_of_the_loss_left: float,
    step_s: float,
) -> dict:
    message_s, bandwidth = message_over_step * step_s, rng.uniform(*BANDWIDTH)
    latency_s = latency_share * message_s / (2 * (sites - 1))
    drift_bytes = int((1 - latency_share) * message_s * bandwidth * sites / (2 * (sites - 1)))
    slow = f"{bandwidth / 1e6:.3f} MB/s {latency_s * 1e3:.3f} ms between"
    tilt = min(disagreement, 0.7)
    curvature = [
        [0.05 * 20 ** (j / (DIMENSIONS - 1)) * math.exp(tilt * rng.gauss(0, 1)) for j in range(DIMENSIONS)]
        for _ in range(sites)
    ]
    largest = max(map(max, curvature))
    centre = [rng.gauss(0, 1) for _ in range(DIMENSIONS)]
    facts = {
        "network": f"{sites}x{rng.choice((1, 2, 4))} nodes, 10 GB/s 10 us inside, {slow}",
        "step_s": step_s,
        "drift_bytes": drift_bytes,
        "curvature": [[x / largest for x in row] for row in curvature],
        "optimum": [[c + disagreement * rng.gauss(0, 1) for c in centre] for _ in range(sites)],
        "shares": _normed([rng.uniform(1, 4) for _ in range(sites)]),
        "inner_lr": 0.2,
        "lr": rng.choice((0.7, 0.8, 0.9, 1.0)),
        "momentum": rng.choice((0.3, 0.5, 0.6)),
    }
    return facts | {"target": _target(facts, part_of_the_loss_left)}


def job_of(facts: dict) -> Job:
    words = facts["network"]
    nodes, ranks = map(int, words.split()[0].split("x"))
    tensors = {name: torch.tensor(facts[name], dtype=torch.float64) for name in ("curvature", "optimum", "shares")}
    return Job(**facts | tensors | {"network": Network.parse(words, nodes * ranks)})


def loss_of(job: Job, w: Tensor) -> float:
    """Return the loss of weights w: the mean over sites, weighted by their shares."""
    by_site = (job.curvature * (w - job.optimum) ** 2).sum(1) / 2
    return float(job.shares @ by_site)


def _target(facts: dict, left: float) -> float:
    """Return the least loss that any weights have, and a part of what lies between it and the loss at the start."""
    job = job_of(facts | {"target": 0.0})
    weight = job.shares[:, None] * job.curvature
    best = (weight * job.optimum).sum(0) / weight.sum(0)
    least, start = loss_of(job, best), loss_of(job, torch.zeros_like(best))
    return least + left * (start - least)


def _normed(numbers: list[float]) -> list[float]:
    return [x / sum(numbers) for x in numbers]
