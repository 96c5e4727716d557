"""Predict by the planner for lesson 8: the peak of a small step, and memory and speed of Llama 3 on H100s."""

from collections.abc import Mapping

from torch import Tensor

from shardlab.model import Transformer
from shardplan.api import figures_of, setup_of
from shardplan.memory import memory_plan
from shardplan.planned_job import Setup
from shardplan.records import Plan
from shardplan.shape import Shape
from shardplan.strategy import Strategy
from shardsim.machines import machine

GIB = 2**30


def planned_peak_bytes(model: Transformer, tokens: Tensor, **recompute) -> int:
    """Return the planner's peak for one step of this model in fp32, on one device, without an optimizer step.

    `recompute` are the planner's fields: recompute="full", recompute_every=2.
    """
    plain = {"sharding": "NONE", "precision": "fp32", "optimizer": "sgd", "optimizer_kernel": "forloop"}
    strategy = Strategy(micro_batch=tokens.shape[0], seq_len=tokens.shape[1], **plain, **recompute)
    setup = Setup(Shape.of("this model", model.config), machine("H100-80GB"), 1, strategy)
    return int(memory_plan(setup, on_gpu=tokens.device.type == "cuda").peak.n_bytes)


def planned_choices(model: str, gpus: int, choices: Mapping[str, Mapping], seq_len: int) -> dict[str, Plan]:
    """Plan the model under FULL_SHARD in bf16 on H100s, once for each choice of the planner's fields."""
    return {name: figures_of(_on_h100(model, gpus, seq_len, **fields)) for name, fields in choices.items()}


def choices_table(plans: Mapping[str, Plan]) -> str:
    """Return a line for each plan: GiB in use on a GPU, whether that fits into 80 GB, tokens a second on a GPU."""
    lines = [f"{'':32s} GiB a GPU   fits   tokens/s"]
    for name, p in plans.items():
        low, high = (n / GIB for n in p.memory.device_bytes)
        lines.append(f"{name:32s} {low:4.0f}-{high:<4.0f} {p.fits:>6s} {p.speed.tokens_per_s:10,.0f}")
    return "\n".join(lines)


def largest_terms(model: str, gpus: int, seq_len: int, **fields) -> str:
    """Return the memory in use on a GPU, and a line for each of the largest terms at the peak."""
    found = memory_plan(_on_h100(model, gpus, seq_len, **fields))
    low, high = (n / GIB for n in found.device_bytes)
    terms = sorted(found.peak.terms, key=lambda t: -t.n_bytes)[:4]
    return "\n".join(
        [
            f"{low:.0f} to {high:.0f} GiB, in: {found.peak.name}",
            *(f"{t.n_bytes / GIB:7.1f} GiB  {t.words}" for t in terms),
        ]
    )


def _on_h100(model: str, gpus: int, seq_len: int, **fields) -> Setup:
    return setup_of(model, "dgx-h100", gpus, seq_len=seq_len, optimizer_kernel="fused", **fields)
