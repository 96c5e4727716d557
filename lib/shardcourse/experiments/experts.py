"""Lesson 19: the tokens and weights of a small mixture of experts, and what a step on four ranks is measured by.

`make()` makes the reader's mixture with the experts of this rank; `alone()` makes it with all experts.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardlab.measure.traffic import record_traffic

N, E, K, D, H, T = 4, 8, 2, 32, 64, 96  # ranks, experts, experts of a token, width, hidden width, tokens of a rank
Make = Callable[..., nn.Module]


class Layer(nn.Module):
    """A dense layer, which stands for the rest of a block, before a mixture of experts."""

    def __init__(self, moe: nn.Module, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.dense, self.moe = nn.Linear(D, D, dtype=torch.float64), moe

    def forward(self, x: Tensor) -> Tensor:
        return self.moe(x + self.dense(x))


@dataclass(frozen=True)
class Step:
    """A step on one rank, beside a process that has all tokens and all experts."""

    loss: float  # mean over all ranks
    error: float  # largest difference of a gradient from that of one process
    all_to_alls: list[tuple[int, int]]  # bytes of the input and of the output
    sent_bytes: int  # by these, to other ranks
    counts: list[int]  # this rank's rows for each expert
    received: int  # rows


def weights(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the router (E, D) and the experts' matrices (E, D, H) and (E, H, D), in float64."""
    torch.manual_seed(seed)
    shapes = (E, D), (E, D, H), (E, H, D)
    return tuple(torch.randn(shape, dtype=torch.float64) / shape[-2] ** 0.5 for shape in shapes)


def tokens(seed: int, skew: float = 2.0) -> tuple[Tensor, Tensor]:
    """Return the inputs and targets (N T, D) of all ranks. `skew` is how far tokens are moved towards expert 0."""
    router, draw = weights(seed)[0], torch.Generator().manual_seed(seed + 1)
    x, target = (torch.randn(N * T, D, dtype=torch.float64, generator=draw) for _ in range(2))
    return x + skew * router[0] / router[0].norm(), target


def mine(t: Tensor) -> Tensor:
    """Return this rank's tokens."""
    return t.chunk(N)[dist.get_rank()]


def backward(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    loss = (model(x) - target).square().mean()
    loss.backward()
    return loss.detach()


def one_step(make: Make, alone: Make, seed: int) -> Step:
    """Run a step on this rank, and the same step on all tokens in one process."""
    x, target = tokens(seed)
    my_x = mine(x).clone().requires_grad_()
    whole, model = alone(), make()
    expected = backward(whole, x.requires_grad_(), target)
    with record_traffic() as traffic:
        loss = backward(model, my_x, mine(target))
    dist.all_reduce(loss)
    found = [c for c in traffic.collectives if c.kind == "all_to_all"]
    sizes = [(c.input_bytes, c.output_bytes) for c in found]
    sent = int(traffic.sent_bytes("all_to_all"))
    error = max(*_errors(model, whole), abs(loss.item() / N - expected.item()), _apart(my_x.grad / N, mine(x.grad)))
    return Step(loss.item() / N, error, sizes, sent, model.counts.tolist(), model.received)


def _errors(model: nn.Module, whole: nn.Module) -> Iterator[float]:
    """Compare gradients, divided by N, with one process's. That of the router is summed over the ranks before."""
    expected = dict(whole.named_parameters())
    for name, p in model.named_parameters():
        gradient, right = p.grad / N, expected[name].grad
        if p.shape == right.shape:
            dist.all_reduce(gradient)
        else:
            right = mine(right)
        yield _apart(gradient, right)


def _apart(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()


def multiples(sharded: Callable[..., nn.Module], alone: Make, seed: int, cases: dict[str, dict]) -> dict[str, str]:
    """Say for each case how many times the right gradients those of `sharded(**options)` are, or the error's line."""
    found = {}
    for words, options in cases.items():
        right = Layer(alone()).to(options.get("dtype", torch.float64))
        try:
            times = _times_right(sharded(**options), right, seed)
        except RuntimeError as error:
            found[words] = str(error).splitlines()[0]
        else:
            dense, experts = times["dense.weight"], times["moe.experts.up"]
            found[words] = f"dense {dense:.2f}, experts {experts:.2f} times the right gradient"
    return found


def _times_right(layer: nn.Module, right: nn.Module, seed: int) -> dict[str, float]:
    """Return each gradient of a sharded layer as a multiple of one process's.

    Raises AssertionError if it is not a multiple.
    """
    found, dtype = {}, next(right.parameters()).dtype
    x, target = (t.to(dtype) for t in tokens(seed))
    backward(right, x, target)
    backward(layer, mine(x), mine(target))
    for (name, p), expected in zip(layer.named_parameters(), right.parameters(), strict=True):
        gradient, cuts = p.grad.full_tensor(), len(expected) // len(p)
        part = expected.grad.chunk(cuts)[dist.get_rank() % cuts]  # `ep` is the mesh's last dimension
        found[name] = ((gradient * part).sum() / part.square().sum()).item()
        torch.testing.assert_close(gradient, found[name] * part)
    return found


def slept_step(make: Make, seed: int, skew: float, row_s: float) -> tuple[int, float]:
    """Return the rows that this rank received, and the seconds of a forward whose experts sleep `row_s` for each."""
    model, x = make(), mine(tokens(seed, skew)[0])
    compute = model.experts.forward

    def slept(rows: Tensor, sizes: list[int]) -> Tensor:
        time.sleep(row_s * len(rows))
        return compute(rows, sizes)

    model.experts.forward, seconds = slept, []
    for _ in range(3):  # the first one warms up
        dist.barrier()
        start = time.perf_counter()
        model(x)
        seconds.append(time.perf_counter() - start)
    return int(model.received), min(seconds[1:])
