"""The check of lesson 15a's exercise: a cross-entropy of logits whose vocabulary is cut over ranks."""

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from shardlab import LaunchError, launch
from shardlab.measure.traffic import record_traffic

CutLoss = Callable[[Tensor, Tensor], Tensor]
TOKENS, WORDS = 12, 40
TRIALS = {"small logits": 1.0, "large logits": 300.0}


def problems(loss: CutLoss, timeout_s: float = 20) -> list[str]:
    """Return what is wrong with a reader's `loss(logits, targets)`, in words; an empty list if nothing is."""
    found = []
    for name, scale in TRIALS.items():
        try:
            said = launch(_try, 4, loss, scale, timeout_s=timeout_s, stream=False, device="cpu")
        except LaunchError as error:
            waits = "some ranks wait for ever: do all ranks call the same collectives?"
            return [f"{name}: {waits if error.timed_out else str(error).splitlines()[0]}"]
        if wrong := next(filter(None, said), None):
            found.append(f"{name}: {wrong}")
    return found


def _try(loss: CutLoss, scale: float) -> str:
    """Return one rank's problem, or ""."""
    torch.manual_seed(0)
    logits = scale * torch.randn(TOKENS, WORDS, dtype=torch.float64)
    whole = logits.clone().requires_grad_()
    targets = torch.randint(WORDS, (TOKENS,))
    expected = F.cross_entropy(whole, targets)
    expected.backward()
    rank, n = dist.get_rank(), dist.get_world_size()
    mine = logits.chunk(n, dim=1)[rank].clone().requires_grad_()
    with record_traffic() as traffic:
        found = loss(mine, targets.clone())
    if not isinstance(found, Tensor) or found.ndim:
        return f"the loss is not one number, but {type(found).__name__} {list(getattr(found, 'shape', []))}"
    if not found.isfinite():
        return f"the loss is {found.item()}: exp of a large number overflows. Subtract the largest logit of all ranks"
    if not torch.isclose(found, expected):
        return f"the loss on rank {rank} is {found.item():.4f}, and one process has {expected.item():.4f}"
    if any(max(c.input_bytes, c.output_bytes) > TOKENS * 8 for c in traffic.collectives):
        return "right, but a message is larger than one number for each token"
    if not found.requires_grad:
        return "the loss has no gradient: all_reduce is not seen by autograd. Use Leave where a gradient passes"
    found.backward()
    right = whole.grad.chunk(n, dim=1)[rank]
    if mine.grad is None or not torch.allclose(mine.grad, right):
        return f"the loss is right, and rank {rank}'s gradient of the logits is not. Use Leave where a gradient passes"
    return ""
