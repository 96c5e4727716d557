"""Compute a case in one process that holds all experts, in float64, right or with a usual mistake."""

import json
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from grading.checks.lab9_experts.draws import Case, batch, weights
from grading.checks.lab9_experts.on_ranks import EXPERT_DIRECTIONS, TOKEN_DIRECTIONS
from grading.judge.tensor_projections import project_rows

MISTAKES = {  # of the weights (T, k) of a token's experts
    "the weights are divided by their sum: the text says that they stay as the softmax has them.": (
        lambda w: w / w.sum(-1, keepdim=True)
    ),
    "the results of the experts are added up without their weights.": torch.ones_like,
    "only the first expert of a token counts.": lambda w: w * (torch.arange(w.shape[1]) == 0),
    "the last expert of a token is left out.": lambda w: w * (torch.arange(w.shape[1]) < w.shape[1] - 1),
    "the results of a token's experts are averaged.": lambda w: torch.full_like(w, 1 / w.shape[1]),
    "no gradient goes through the weights, so the router does not learn from the loss.": torch.detach,
}
NO_ROUTER_GRADIENT = [*MISTAKES][-1]


@dataclass
class Truth:
    """Projections: of outputs and tokens' gradients by micro-batch and rank; of gradients by router row and expert."""

    out: list[list[Tensor]]
    x: list[list[Tensor]]
    router: Tensor
    up: Tensor
    down: Tensor


def truth(case: Case, mistake: str = "") -> Truth:
    """Return the outputs of all ranks' tokens; gradients of the mean over ranks of their losses, but x's of its own."""
    return _truth(json.dumps(case), mistake)


@cache
def _truth(written: str, mistake: str) -> Truth:
    case = Case(*json.loads(written))
    n, gradients = len(case.tokens[0]), [torch.zeros_like(t).double() for t in weights(case)]
    out, x_gradients = [], []
    for i in range(len(case.tokens)):
        parameters = [t.double().requires_grad_() for t in weights(case, i)]
        router, up, down = parameters
        pairs = [[t.double() for t in batch(case, i, rank)] for rank in range(n)]
        x = torch.cat([x for x, _ in pairs]).requires_grad_()
        y = mixture(x, router, up, down, case.top_k, MISTAKES.get(mistake, lambda w: w))
        (y * torch.cat([gradient for _, gradient in pairs])).sum().backward()
        for found, t, directions in ((out, y, TOKEN_DIRECTIONS), (x_gradients, x.grad, TOKEN_DIRECTIONS)):
            found.append(list(_projected(t, case, directions).split(case.tokens[i])))
        for total, p in zip(gradients, parameters, strict=True):
            total += 0 if p.grad is None else p.grad
    return Truth(out, x_gradients, *(_projected(g.flatten(1) / n, case, EXPERT_DIRECTIONS) for g in gradients))


def _projected(t: Tensor, case: Case, directions: int) -> Tensor:
    return torch.tensor(project_rows(t, case.seed, directions), dtype=torch.float64).view(-1, directions)


def mixture(x: Tensor, router: Tensor, up: Tensor, down: Tensor, top_k: int, change=lambda w: w) -> Tensor:
    """Compute every expert for every token, and keep what its token chose."""
    weight, chosen = (x @ router.T).softmax(-1).topk(top_k, -1)
    gates = torch.zeros(len(x), len(router), dtype=x.dtype).scatter(1, chosen, change(weight))
    return torch.einsum("te,etd->td", gates, F.silu(x @ up) @ down)
