"""Checks of precision: the messages of two real ranks, and sums and weight updates in one process."""

from contextlib import nullcontext
from functools import cache

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from shardcourse.claims.claim import Findings
from shardlab import launch
from shardlab.launch.flight_recorder import Collective
from shardlab.measure.traffic import record_traffic

WIDTH = 64


def ddp_traffic(way: str) -> Findings:
    """Return the bytes of gradients that torch's DDP sends, as a multiple of those in float32."""
    return {way: _traffic()[way] / _traffic()["float32"]}


@cache
def _traffic() -> dict[str, float]:
    return launch(_ddp_bytes, 2, device="cpu", stream=False)[0]


def _ddp_bytes() -> dict[str, float]:
    """Return the bytes of one step's messages, by the precision of the model or of autocast."""
    plain, halved = DistributedDataParallel(_layers()), DistributedDataParallel(_layers().bfloat16())
    autocast = torch.autocast("cpu", torch.bfloat16)
    ways = {"float32": (plain, None), "autocast": (plain, autocast), "a bf16 model": (halved, None)}
    return {way: sum(c.input_bytes for c in _step(*with_what)) for way, with_what in ways.items()}


def fsdp_reduces_in(reduce_dtype: str | None) -> Findings:
    """Return the dtype of FSDP2's reduce_scatters with param_dtype=bfloat16."""
    when = f"reduce_dtype={reduce_dtype}" if reduce_dtype else "reduce_dtype left out"
    return {when: _reduced()[reduce_dtype]}


def fsdp_reduces() -> Findings:
    """Return the dtype with reduce_dtype left out, and with float32."""
    return fsdp_reduces_in(None) | fsdp_reduces_in("float32")


@cache
def _reduced() -> dict[str | None, str]:
    return launch(_reduce_dtypes, 2, device="cpu", stream=False)[0]


def _reduce_dtypes() -> dict[str | None, str]:
    found = {}
    for name in (None, "float32"):
        policy = MixedPrecisionPolicy(torch.bfloat16, getattr(torch, name) if name else None)
        model = fully_shard(_layers(), mp_policy=policy)
        found[name] = next(c.dtype for c in _step(model) if c.kind == "reduce_scatter")
    return found


def _layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2)))


def _step(module: nn.Module, surroundings=None) -> list[Collective]:
    with record_traffic() as traffic, surroundings or nullcontext():
        weight = next(module.parameters())
        module(torch.ones(2, WIDTH, dtype=weight.dtype)).sum().backward()
    module.zero_grad()
    return [c for c in traffic.collectives if c.kind in ("all_reduce", "reduce_scatter")]


# --------------------------------------------------------------------------------------------- sums and updates, alone


def sum_is_worse_in_bf16(ranks: list[int]) -> Findings:
    """Check whether a sum of N gradients, added one by one, is over 100 times as inexact in bf16 as in fp32."""
    return {f"{n} ranks": _error(n, torch.bfloat16) > 100 * _error(n, torch.float32) for n in ranks}


def _error(n_ranks: int, dtype: torch.dtype) -> float:
    gradients = torch.randn(n_ranks, 10_000, generator=torch.Generator().manual_seed(0))
    total = torch.zeros(10_000, dtype=dtype)
    for gradient in gradients:
        total += gradient.to(dtype)
    true = gradients.double().sum(0)
    return ((total.double() - true).norm() / true.norm()).item()


def weights_that_move(lr: float) -> Findings:
    """Return how many percent of weights (of the usual size) one step of AdamW changes."""
    return {"bfloat16": 100 * _moved(torch.bfloat16, lr)}


def _moved(dtype: torch.dtype, lr: float) -> float:
    weights = nn.Parameter((0.02 * torch.randn(100_000, generator=torch.Generator().manual_seed(0))).to(dtype))
    before = weights.detach().clone()
    weights.grad = torch.ones_like(weights)
    torch.optim.AdamW([weights], lr=lr, weight_decay=0.01).step()
    return (weights != before).float().mean().item()
