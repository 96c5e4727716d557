"""Count what torch.compile does to a module, and train compiled, sharded models: lesson 17.

with counted() as counts:
    torch.compile(f, backend="aot_eager")(x)
counts.graphs, counts.breaks, counts.operations

Source: the counters of torch/_dynamo/utils.py.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.utils import counters

from shardlab import local_device
from shardlab.measure.traffic import record_traffic
from shardlab.model import Transformer, preset
from shardlab.text_batches import batch

CONFIG = preset("1M", n_layers=3)


@dataclass
class Counts:
    """What the compiler made: graphs, operations in them, graph breaks, and the reasons that it gives for these.

    A break leaves a place at which the code continues. Torch counts these, and gives no reason for a branch on data.
    """

    graphs: int = 0
    operations: int = 0
    breaks: int = 0
    reasons: list[str] = field(default_factory=list)

    def read(self) -> None:
        """Take what the compiler has counted up to now."""
        stats = counters["stats"]
        self.graphs, self.operations = stats.get("unique_graphs", 0), stats.get("calls_captured", 0)
        self.reasons = [words.splitlines()[0] for words, n in counters["graph_break"].items() for _ in range(n)]
        self.breaks = max(len(self.reasons), len(counters["resumes"]))


@contextmanager
def counted() -> Iterator[Counts]:
    """Forget all compiled code, and count what is compiled inside the block. Read `counts` after the block."""
    torch.compiler.reset()
    counters.clear()
    counts = Counts()
    try:
        yield counts
    finally:
        counts.read()


@dataclass(frozen=True)
class Trained:
    """A rank's short training run."""

    losses: list[float]
    counts: Counts
    messages: dict[str, int]  # of the last step, by kind
    sent_bytes: float  # in the last step
    same_names: bool  # the state dict has the names of the plain model


def train(prepare: Callable[[nn.Module], nn.Module], steps: int = 3, seq_len: int = 64) -> Trained:
    """Train a model that `prepare` compiles and shards, one sample a rank, and count graphs and messages."""
    torch.manual_seed(0)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model, losses = Transformer(CONFIG).to(local_device()), []
    names = list(model.state_dict())
    with counted() as counts:
        model = prepare(model)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        for step in range(steps):
            data = batch(0, step, rank, world_size, global_batch=4, seq_len=seq_len, device=local_device())
            with record_traffic() as traffic:
                loss = model(*data)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    same_names = list(model.state_dict()) == names
    return Trained(losses, counts, dict(traffic.kinds()), traffic.sent_bytes(), same_names)


def train_each(ways: Mapping[str, Callable], **sizes: int) -> dict[str, Trained]:
    """Train in several ways, one after the other, in one launch."""
    return {name: train(prepare, **sizes) for name, prepare in ways.items()}


def compile_blocks(model: Transformer, backend: str = "aot_eager") -> Transformer:
    """Compile each block by itself, in place."""
    for block in model.blocks:
        block.compile(backend=backend)
    return model


def compile_seconds(
    n_layers: int, compile_model: Callable[[Transformer], object], repeats: int = 2
) -> tuple[float, Counts]:
    """Return how much more CPU time a model's first step takes than its second, and what was compiled.

    One thread computes, because several wait for each other and count it as CPU time. The shortest of `repeats` counts.
    """
    data, taken, threads = batch(0, 0, 0, 1, global_batch=1, seq_len=32), [], torch.get_num_threads()
    torch.set_num_threads(1)
    for _ in range(repeats):
        model = Transformer(preset("1M", n_layers=n_layers))
        with counted() as counts:
            compile_model(model)
            first, second = _step_seconds(model, data), _step_seconds(model, data)
        taken.append(first - second)
    torch.set_num_threads(threads)
    return min(taken), counts


def _step_seconds(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    began = time.process_time()
    model(*data).backward()
    return time.process_time() - began
