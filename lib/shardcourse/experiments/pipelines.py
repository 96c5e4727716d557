"""Pieces of lesson 15b's model, torch's schedules around them, and what their ranks hold and when they compute."""

from collections import Counter

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from shardlab import launch, local_device
from shardlab.measure.memory import MemoryTracker
from shardlab.model import Transformer, preset, rotary_angles
from shardlab.text_batches import batch
from shardsim import slept_computation
from shardtrace.timeline import Span, Timeline

BATCH, FORWARD_S = 8, 0.025
PIECES = {"GPipe": 1, "1F1B": 1, "interleaved": 2}  # of a rank


class Piece(nn.Module):
    """Blocks of piece i of n. The first piece has the embedding, the last one the output layer."""

    def __init__(self, model: Transformer, i: int, n: int) -> None:
        super().__init__()
        size = len(model.blocks) // n
        self.config, self.blocks = model.config, model.blocks[i * size : (i + 1) * size]
        self.embedding = model.embedding if i == 0 else nn.Identity()
        self.head = nn.Sequential(model.norm, model.output) if i == n - 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        c = self.config
        x = self.embedding(x)
        angles = rotary_angles(x.shape[1], c.head_dim, c.rope_theta, x.device)
        for block in self.blocks:
            x = block(x, *angles)
        return self.head(x)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def make_schedule(name: str, model: Transformer, m: int):
    """Return this rank's pieces, and torch's schedule of m micro-batches around them."""
    rank, p, v = dist.get_rank(), dist.get_world_size(), PIECES[name]
    pieces = [Piece(model, i, p * v) for i in range(rank, p * v, p)]
    stages = [PipelineStage(piece, rank + j * p, p * v, local_device()) for j, piece in enumerate(pieces)]
    if name == "interleaved":
        return pieces, ScheduleInterleaved1F1B(stages, m, loss_of)
    return pieces, {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}[name](stages[0], m, loss_of)


def run_schedule(schedule, seq_len: int = 64) -> None:
    first, last = dist.get_rank() == 0, dist.get_rank() == dist.get_world_size() - 1
    tokens, targets = batch(0, 0, 0, 1, global_batch=BATCH, seq_len=seq_len, device=local_device())
    schedule.step(*([tokens.contiguous()] if first else []), **({"target": targets} if last else {}))


def kept_bytes(name: str, m: int = 8) -> int:
    """Return the most bytes of activations that this rank keeps at once."""
    torch.manual_seed(0)
    pieces, schedule = make_schedule(name, Transformer(preset("1M", n_layers=8)).to(local_device()), m)
    run_schedule(schedule)
    with MemoryTracker(nn.ModuleList(pieces)) as tracker:
        run_schedule(schedule)
    return max(by_category["activations"] for _, by_category in tracker.timeline())


def slept_steps(name: str, m: int) -> list[Timeline]:
    """Return this rank's timelines of two steps in which it sleeps instead of computing."""
    torch.manual_seed(0)
    pieces, schedule = make_schedule(name, Transformer(preset("1M", n_layers=8, dim=32, hidden_dim=64)), m)
    for j, piece in enumerate(pieces):
        slept_computation.sleep_in(piece, FORWARD_S / PIECES[name], name=str(j))
    steps = []
    for _ in range(3):
        dist.barrier()
        slept_computation.clear()
        run_schedule(schedule, seq_len=8)
        seen, spans = Counter[tuple[str, str]](), []
        for c in slept_computation.computations():  # micro-batches pass a piece in their order
            spans.append(Span("compute", c.kind, c.started_s, c.finished_s, str(seen[c.kind, c.name])))
            seen[c.kind, c.name] += 1
        steps.append(Timeline(dist.get_rank(), tuple(spans)))
    return steps[1:]


def measured_schedule(name: str, n: int, m: int) -> tuple[Timeline, ...]:
    """Return the ranks' timelines of the quicker of two steps: other work on the machine only makes a step longer."""
    ranks = launch(slept_steps, n, name, m, device="cpu")
    return min(zip(*ranks, strict=True), key=lambda step: max(t.end_s for t in step) - min(t.start_s for t in step))
