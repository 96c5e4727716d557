"""Lab 9 on the ranks: run the submission's layer on drawn tokens, and record its numbers and its bytes."""

import operator

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from grading.checks.lab9_experts.draws import DTYPES, Case, batch, weights
from grading.checks.refused_course_code import refuse_finished_parts
from grading.judge.tensor_projections import project_rows
from shardlab import local_device
from shardlab.measure.traffic import Traffic, record_traffic

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
    """Return of each case what `_run_case` records. All layers are built before the first one is called."""
    if implementation is not Local:
        refuse_finished_parts(implementation, RULE)
    drawn = [Case(*case) for case in cases]
    return [_run_case(case, *built) for case, built in [(case, _build(implementation, case)) for case in drawn]]


def _build(implementation, case: Case) -> tuple:
    """Return the layer, its parameters, and the bytes that the constructor sends."""
    parameters = [nn.Parameter(t) for t in _own_weights(case, 0)]
    with record_traffic() as built:
        layer = implementation(*parameters, case.top_k, list(case.homes), DTYPES[case.wire])
    return layer, parameters, built.sent_bytes()


def _own_weights(case: Case, micro_batch: int) -> list[Tensor]:
    """Return the router and the matrices of this rank's experts."""
    router, up, down = (t.to(local_device()) for t in weights(case, micro_batch))
    mine = [e for e, home in enumerate(case.homes) if home == dist.get_rank()]
    return [router, up[mine].clone(), down[mine].clone()]


def _run_case(case: Case, layer, parameters: list[nn.Parameter], built_bytes: float) -> dict:
    """Return projected outputs and gradients, and the bytes that this rank sends, of the case's micro-batches."""
    passes = []
    for together in [range(case.together), *([i] for i in range(case.together, len(case.tokens)))]:
        if case.steps:
            _step(parameters, case, together[0])
        forwards = [_forward(layer, case, i) for i in together]
        evaluated = _evaluate(layer, case, together[-1]) if len(together) > 1 else {}
        done = {i: _backward(case, *forwards[i]) for i in (case.order if len(together) > 1 else [0])}
        passes += [done[i] for i in range(len(together))]
        passes[-1] |= evaluated
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for p in parameters]
    lost = [name for name, p in zip(("router", "up", "down"), parameters, strict=True) if p.grad is None]
    mean = gradients[0]
    dist.all_reduce(mean)
    n = dist.get_world_size()
    named = zip(("router", "up", "down"), (mean / n, *gradients[1:]), strict=True)
    return {
        "built": built_bytes,
        "passes": passes,
        "none": lost,
        **{name: project_rows(t.flatten(1), case.seed, EXPERT_DIRECTIONS) for name, t in named},
    }


@torch.no_grad()
def _step(parameters: list[nn.Parameter], case: Case, micro_batch: int) -> None:
    """Change the parameters in place, as an optimizer does."""
    for p, new in zip(parameters, _own_weights(case, micro_batch), strict=True):
        p.copy_(new)


def _forward(layer, case: Case, micro_batch: int) -> tuple:
    """Return the rank's tokens, the gradient of its loss by the outputs, the outputs, and the bytes sent."""
    x, gradient = _inputs(case, micro_batch)
    x.requires_grad_()
    before = x.detach().clone()
    with record_traffic() as forward:
        out = layer(x)
    _refuse_change("tokens", x, before)
    if not isinstance(out, Tensor) or out.shape != x.shape or out.dtype != x.dtype or not out.requires_grad:
        raise ValueError(
            f"the layer got {_described(x)} and has to return the like, with a graph: not {_described(out)}"
        )
    return x, gradient, out, _bytes("forward", forward)


def _bytes(name: str, traffic: Traffic) -> dict[str, float]:
    """Return the bytes that this rank sends in a pass, and those of them that it writes into the store."""
    return {name: traffic.sent_bytes(), f"{name} by the store": traffic.sent_bytes("store")}


def _inputs(case: Case, micro_batch: int) -> list[Tensor]:
    """Return the rank's tokens and the gradient by the outputs, on its device."""
    both = [t.to(local_device()) for t in batch(case, micro_batch, dist.get_rank())]
    return [t.T.contiguous().T for t in both] if case.view else both


@torch.no_grad()
def _evaluate(layer, case: Case, micro_batch: int) -> dict:
    """Return the projected outputs of a forward without a graph, and the bytes that it sends."""
    x = _inputs(case, micro_batch)[0]
    before = x.clone()
    with record_traffic() as traffic:
        out = layer(x)
    _refuse_change("tokens", x, before)
    if not isinstance(out, Tensor) or out.shape != x.shape or out.dtype != x.dtype:
        raise ValueError(f"under no_grad the layer got {_described(x)}, and returned {_described(out)}")
    projected = project_rows(out.detach(), case.seed, TOKEN_DIRECTIONS)
    return {"evaluated": projected} | _bytes("evaluation", traffic)


def _backward(case: Case, x: Tensor, gradient: Tensor, out: Tensor, forward_bytes: dict[str, float]) -> dict:
    before = gradient.clone()
    with record_traffic() as backward:
        out.backward(gradient)
    _refuse_change("gradient", gradient, before)
    x_gradient = torch.zeros_like(x) if x.grad is None else x.grad
    return {
        "out": project_rows(out.detach(), case.seed, TOKEN_DIRECTIONS),
        "x": project_rows(x_gradient, case.seed, TOKEN_DIRECTIONS),
        **forward_bytes,
        **_bytes("backward", backward),
    }


def _refuse_change(what: str, given: Tensor, before: Tensor) -> None:
    """Programs use the same tensors again: a residual connection adds x, and gets the same gradient."""
    if not torch.equal(given, before):
        raise ValueError(f"the layer changed the {what} that it was given: make a new tensor")


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
