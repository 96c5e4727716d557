"""Check of lesson 19's exercise: a bias that balances experts, chosen with and updated on every rank alike."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from shardlab import LaunchError, launch

N, T, E, K, RATE = 2, 64, 8, 2, 0.01
STEPS = 150
Route = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]  # scores, bias, k: the experts, their weights
NewBias = Callable[[Tensor, Tensor, float], Tensor]  # bias, experts, rate


def check_bias(route: Route, new_bias: NewBias) -> str:
    """Return in words what is wrong with the reader's functions, or that they are right."""
    try:
        ranks = launch(_try, N, route, new_bias, device="cpu", stream=False)
    except LaunchError as error:
        return f"It fails. {str(error).strip().splitlines()[-1]}"
    if any(isinstance(said, str) for said in ranks):
        return next(said for said in ranks if isinstance(said, str))
    before, after = ranks[0]
    return (
        f"Right. The busiest expert has {before:.2f} times the mean without a bias, and {after:.2f} times "
        f"after {STEPS} updates."
    )


def _try(route: Route, new_bias: NewBias) -> str | tuple[float, float]:
    """Return what is wrong on this rank, or the busiest expert's load at the beginning and at the end."""
    draw = torch.Generator().manual_seed(dist.get_rank())
    try:
        wrong = _wrong_route(route, draw)
    except NotImplementedError:
        return "my_route is not written yet."
    try:
        return wrong or _wrong_update(new_bias, draw) or _balanced(route, new_bias, draw)
    except NotImplementedError:
        return "my_route is right. my_new_bias is not written yet."


def _wrong_route(route: Route, draw: torch.Generator) -> str:
    scores = (2 * torch.randn(T, E, generator=draw)).requires_grad_()
    bias = torch.linspace(-0.3, 0.3, E)
    p = scores.sigmoid()
    right = (p + bias).topk(K).indices
    chosen, weight = route(scores, bias, K)
    if chosen.shape != (T, K) or weight.shape != (T, K):
        return f"my_route returns the shapes {list(chosen.shape)} and {list(weight.shape)}; both should be {[T, K]}."
    if not _same_experts(chosen, right):
        if _same_experts(chosen, p.topk(K).indices):
            return "my_route chooses by the sigmoid alone. The bias has no effect."
        if _same_experts(chosen, (scores + bias).topk(K).indices):
            return "my_route adds the bias to the scores before the sigmoid. Add it to the sigmoid's result."
        if _same_experts(chosen, (scores.softmax(-1) + bias).topk(K).indices):
            return "my_route adds the bias to a softmax. DeepSeek-V3 takes the sigmoid of each score."
        return "my_route does not choose the k largest sums of sigmoid and bias."
    of_chosen, with_bias = p.gather(-1, chosen), (p + bias).gather(-1, chosen)
    expected = of_chosen / of_chosen.sum(-1, keepdim=True)
    if not torch.allclose(weight, expected, atol=1e-5):
        if torch.allclose(weight, with_bias / with_bias.sum(-1, keepdim=True), atol=1e-5):
            return "The bias is in the weights. It may choose the experts, but must not change the result."
        if torch.allclose(weight, of_chosen, atol=1e-5):
            return "The weights of a token do not sum to one. Divide them by their sum."
        return "The weights are not the sigmoids of the chosen experts' scores, divided by their sum."
    if not weight.requires_grad:
        return "The weights carry no gradient, so the router would never learn."
    direction = torch.randn(weight.shape, generator=draw)
    found = torch.autograd.grad((weight * direction).sum(), scores, retain_graph=True)[0]
    right = torch.autograd.grad((expected * direction).sum(), scores)[0]
    return "" if torch.allclose(found, right, atol=1e-5) else "The weights are right, but their gradient is not."


def _same_experts(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.sort(-1).values, b.sort(-1).values)


def _wrong_update(new_bias: NewBias, draw: torch.Generator) -> str:
    """Check one update. No token of any rank chooses the last expert."""
    share = torch.rand(E, generator=draw)
    share[-1] = 0
    chosen = torch.multinomial(share.expand(T, E), K, generator=draw)
    bias = torch.linspace(-0.05, 0.05, E)
    mine = chosen.flatten().bincount(minlength=E).float()
    dist.all_reduce(rows := mine.clone())
    found, step = new_bias(bias.clone(), chosen, RATE), RATE * (rows.mean() - rows).sign()
    if not isinstance(found, Tensor) or found.shape != bias.shape:
        shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        return f"my_new_bias should return a tensor of {E} numbers, one for each expert; it returns {shape}."
    change = found - bias
    if torch.allclose(change, step, atol=1e-6):
        return ""
    if torch.allclose(change, RATE * (mine.mean() - mine).sign(), atol=1e-6):
        return "my_new_bias counts this rank's rows only, so the ranks' biases differ. Add the rows of all ranks up."
    if torch.allclose(change, -step, atol=1e-6):
        return "The sign is wrong: the bias of the busiest expert rises, so it gets even more rows."
    if torch.equal(change.sign(), step.sign()):
        return "The direction is right, the size is not: each bias should change by the rate."
    return "my_new_bias does not move each bias by the rate towards the mean load."


def _balanced(route: Route, new_bias: NewBias, draw: torch.Generator) -> tuple[float, float]:
    """Return the busiest expert's rows over the mean, at the beginning and at the end of some steps."""
    bias, liking, loads = torch.zeros(E), torch.linspace(1.5, 0, E), []
    for _ in range(STEPS):
        chosen, _ = route(torch.randn(T, E, generator=draw) + liking, bias, K)
        rows = chosen.flatten().bincount(minlength=E).float()
        dist.all_reduce(rows)
        loads.append((rows.max() / rows.mean()).item())
        bias = new_bias(bias, chosen, RATE)
    return loads[0], sum(loads[-10:]) / 10
