"""Lab 9 on the ranks: run the submission's layer on drawn tokens, and record its numbers and its bytes."""

import operator

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from grading.checks.allowed_imports import refuse_finished_parts
from grading.checks.lab9_experts.draws import DTYPES, Case, batch, weights
from grading.judge.tensor_projections import project_rows
from shardlab import local_device
from shardlab.measure.traffic import record_traffic

RULE = "this lab is written with torch alone"
TOKEN_DIRECTIONS, EXPERT_DIRECTIONS = 2, 4
BUDGETS = {"row": 1.0, "for_each_choice": 32, "for_a_pass": 4096}  # of a message's rows; bytes; bytes


class Local(nn.Module):
    """Compute the experts of this rank alone. Its time tells how busy the machine is."""

    def __init__(self, router, up, down, top_k, homes, wire):
        super().__init__()
        self.router, self.up, self.down = router, up, down

    def forward(self, x):
        return sum((F.silu(x @ up) @ down for up, down in zip(self.up, self.down, strict=True)), 0 * x)


def run(implementation, cases: list) -> list[dict]:
    """Return of each case what `_run_case` records."""
    if implementation is not Local:
        refuse_finished_parts(implementation, RULE)
    return [_run_case(implementation, Case(*case)) for case in cases]


def _run_case(implementation, case: Case) -> dict:
    """Return projected outputs and gradients, and the bytes that this rank sends, of the case's micro-batches."""
    device, rank, n = local_device(), dist.get_rank(), dist.get_world_size()
    router, up, down = (t.to(device) for t in weights(case))
    mine = [e for e, home in enumerate(case.homes) if home == rank]
    parameters = [nn.Parameter(t) for t in (router, up[mine].clone(), down[mine].clone())]
    with record_traffic() as built:
        layer = implementation(*parameters, case.top_k, list(case.homes), DTYPES[case.wire])
    passes = [_run_batch(layer, case, i) for i in range(len(case.tokens))]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for p in parameters]
    lost = [name for name, p in zip(("router", "up", "down"), parameters, strict=True) if p.grad is None]
    mean = gradients[0]
    dist.all_reduce(mean)
    named = zip(("router", "up", "down"), (mean / n, *gradients[1:]), strict=True)
    return {
        "built": built.sent_bytes(),
        "passes": passes,
        "none": lost,
        **{name: project_rows(t.flatten(1), case.seed, EXPERT_DIRECTIONS) for name, t in named},
    }


def _run_batch(layer, case: Case, micro_batch: int) -> dict:
    x, gradient = (t.to(local_device()) for t in batch(case, micro_batch, dist.get_rank()))
    x.requires_grad_()
    with record_traffic() as forward:
        out = layer(x)
    if not isinstance(out, Tensor) or out.shape != x.shape or out.dtype != x.dtype or not out.requires_grad:
        raise ValueError(
            f"the layer got {_described(x)} and has to return the like, with a graph: not {_described(out)}"
        )
    with record_traffic() as backward:
        (out * gradient).sum().backward()
    x_gradient = torch.zeros_like(x) if x.grad is None else x.grad
    return {
        "out": project_rows(out.detach(), case.seed, TOKEN_DIRECTIONS),
        "x": project_rows(x_gradient, case.seed, TOKEN_DIRECTIONS),
        "forward": forward.sent_bytes(),
        "backward": backward.sent_bytes(),
    }


def _described(t) -> str:
    if not isinstance(t, Tensor):
        return f"{t!r:.40}"
    return f"a {tuple(t.shape)} tensor of {t.dtype}" + ("" if t.requires_grad else " that needs no gradient")


def place(implementation, instances: list[dict]) -> list[list | str]:
    """Return the submission's ranks of experts of each instance, or what it returned in their place."""
    refuse_finished_parts(implementation, RULE)
    return [_homes(implementation(**instance)) for instance in instances]


def _homes(returned) -> list[int] | str:
    try:
        return [operator.index(rank) for rank in returned]
    except TypeError:
        return f"{returned!r:.60}"


REFERENCE = {"run": Local}
