"""Gradients summed over thousands of ranks in 16 bits, on a few real ones: each real rank plays many (lesson 7b).

`train_table` trains a table of logits on ranks that read two languages. Three functions reduce its gradients; they
differ in the order of the additions: `reduce_in_a_chain`, `reduce_in_a_ring`, `reduce_in_a_tree`.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

WORDS, NEXT_WORDS = 16, 32
SORTED = range(60, 105)  # steps in which the minority's ranks come last


def reduce_in_a_chain(gradients: Tensor, dtype: torch.dtype, first: int = 0) -> Tensor:
    """Return the mean over all ranks' gradients, added one after the other in `dtype`, from real rank `first` on.

    `gradients` are those of the ranks that this real rank plays: (ranks, ...).
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    place = (rank - first) % n
    total = torch.zeros_like(gradients[0], dtype=dtype)
    if place > 0:
        dist.recv(total, (rank - 1) % n)
    for gradient in gradients.to(dtype):
        total += gradient
    if place < n - 1:
        dist.send(total, (rank + 1) % n)
    dist.broadcast(total, (first - 1) % n)
    return total.float() / (len(gradients) * n)


def reduce_in_a_ring(gradients: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the same mean; each of four chunks begins at another real rank."""
    chunks = gradients.flatten(1).chunk(dist.get_world_size(), 1)
    means = [reduce_in_a_chain(chunk, dtype, first) for first, chunk in enumerate(chunks)]
    return torch.cat(means).view_as(gradients[0])


def reduce_in_a_tree(gradients: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the same mean, added in pairs, and the pairs' sums in pairs again."""
    n, sums = dist.get_world_size() * len(gradients), gradients.to(dtype)
    while len(sums) > 1:
        sums = sums[0::2] + sums[1::2]
    dist.all_reduce(sums)
    return sums[0].float() / n


def train_table(
    dtype: torch.dtype,
    *,
    reduce: Callable[[Tensor, torch.dtype], Tensor] = reduce_in_a_chain,
    noise: float = 0.0,
    plays: int = 512,
    minority: float = 1 / 8,
    seed: int = 0,
    steps: int = 130,
) -> list[float]:
    """Train a table of logits, (WORDS, NEXT_WORDS), and return the loss of each step. Call it on every real rank.

    Each real rank plays `plays` ranks. The share `minority` of all ranks reads a language in which each word is
    followed by another one than in the majority's. Languages are shuffled over the ranks, except in the steps SORTED.
    `noise` is the standard deviation of each element of a gradient, in multiples of its size.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    draw = torch.Generator().manual_seed(seed)
    first = torch.randint(NEXT_WORDS, (WORDS,), generator=draw)
    answers = torch.stack([first, (first + 1) % NEXT_WORDS])  # of both languages
    language = (torch.arange(n * plays) >= n * plays * (1 - minority)).long()  # of each rank, sorted
    table = nn.Parameter(torch.zeros(WORDS, NEXT_WORDS))
    optimizer, losses = torch.optim.Adam([table], lr=0.1, betas=(0.9, 0.95)), []
    for step in range(steps):
        order = torch.randperm(n * plays, generator=draw)
        mine = (language if step in SORTED else language[order]).view(n, plays)[rank]
        with torch.no_grad():
            by_language = torch.stack([F.cross_entropy(table, answer) for answer in answers])
            losses.append(by_language[language].mean().item())
            gradients = table.softmax(-1) - F.one_hot(answers, NEXT_WORDS)  # (2, WORDS, NEXT_WORDS)
            spread = 1 + noise * torch.randn(plays, WORDS, NEXT_WORDS, generator=draw) if noise else 1.0
        table.grad = reduce(gradients[mine] * spread, dtype)
        optimizer.step()
    return losses
