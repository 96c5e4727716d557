"""The same few steps of training for every strategy, and what one process alone makes of the same global batches.

[Note: tolerance] Ranks add up gradients in another order than one process does. With 1 or 2 ranks the order can't
matter (a + b = b + a, and a division by 2 is exact), so results are equal to the bit. With more, each sum of N
gradients differs by at most N-1 roundings. In float64 that is below 1e-15 of a gradient's largest summand, which 20
steps of AdamW amplify to less than CLOSE (measured: 4e-13); anything wrong with an algorithm shows at 1e-3 or more.
Hence the model in float64. `train_alone` must run as a rank, too, `launch(..., 1)`: with more threads a product of
matrices is summed up in another order.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from packaging.version import Version
from torch import Tensor, nn

from shardlab import text_batches
from shardlab.model import Transformer, preset

GLOBAL_BATCH, SEQ_LEN = 12, 16  # 12 samples divide over 1, 2, 3 and 4 ranks
CLOSE = {"rtol": 1e-9, "atol": 1e-11}  # float64 only
SINCE_2_12 = Version(torch.__version__) >= Version("2.12")  # what ours is compared with may be missing in 2.11


class Mixer(nn.Module):
    """A residual block of odd sizes: dim 0 of its parameters is 9, 9, 23, 23, 9 and 1."""

    def __init__(self, dim: int = 9, hidden: int = 23) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.gain = nn.Parameter(torch.ones(1))  # smaller than any world size but one

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gain * self.down(F.gelu(self.up(self.norm(x))))


class Uneven(nn.Module):
    """Bytes in, loss out: a model that no world size but 1 divides, every operation in the dtype of its weights."""

    def __init__(self, n_blocks: int = 3, dim: int = 9, dtype: torch.dtype = torch.float64, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(257, dim)
        self.blocks = nn.ModuleList(Mixer(dim) for _ in range(n_blocks))
        self.output = nn.Linear(dim, 257, bias=False)
        if tied:
            self.output.weight = self.embedding.weight
        self.to(dtype)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.output(x).flatten(0, 1), targets.flatten())


def uneven(seed: int = 0, **changes) -> Uneven:
    torch.manual_seed(seed)
    return Uneven(**changes)


def decoder(seed: int = 0, **changes) -> Transformer:
    """The course's model with 45 k parameters in float32, of sizes that 3 and 4 do not divide."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": 257, "dim": 40, "n_heads": 4, "n_kv_heads": 2, "hidden_dim": 90, "n_layers": 2}
    return Transformer(preset("1M", **sizes | changes))


def samples(step: int, rank: int, world_size: int) -> tuple[Tensor, Tensor]:
    return text_batches.batch(0, step, rank, world_size, global_batch=GLOBAL_BATCH, seq_len=SEQ_LEN)


def train(model, optimizer, steps: int = 20, *, first: int = 0, before_step=lambda: None) -> list[float]:
    """On a rank: the global mean loss of each step. `before_step()` runs between backward and the optimizer."""
    losses = []
    for step in range(first, first + steps):
        loss = model(*samples(step, dist.get_rank(), dist.get_world_size()))
        loss.backward()
        before_step()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().double()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    return losses


def train_alone(model, optimizer, world_size: int, steps: int = 20, *, first: int = 0, before_step=lambda: None):
    """In one process: the losses of the same global batches, rank after rank, each rank's loss divided by N."""
    losses = []
    for step in range(first, first + steps):
        by_rank = []
        for rank in range(world_size):
            loss = model(*samples(step, rank, world_size)) / world_size
            loss.backward()
            by_rank.append(loss.detach().double() * world_size)
        before_step()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(sum(by_rank).item() / world_size)
    return losses
