"""Lab 1 on the ranks: the submission predicts from plain numbers; the reference runs each setup and measures.

A tensor has the same bytes on every machine, so everything is counted on CPUs, on every tier.
"""

import math
import warnings
from dataclasses import fields, is_dataclass
from numbers import Real

import torch

from grading.checks.lab1_memory import programs
from grading.checks.lab1_memory.programs import Setup, kept_tensors, track_step
from grading.checks.lab1_memory.refused_imports import Refused, foreign, nothing_but_arithmetic
from shardlab.model import Block, ModelConfig, rotary_angles


def predict(implementation, setups: list[dict]) -> list | dict:
    """Return the numbers of each of the answer's functions, for each setup.

    Return {"refused": why} if the answer uses a refused library.
    """
    functions = implementation if isinstance(implementation, tuple | list) else (implementation,)
    if found := foreign(tuple(functions)):
        return {"refused": found}
    try:
        with nothing_but_arithmetic():
            return [[_numbers(f(_setup_class(f)(**s))) for f in functions] for s in setups]
    except Refused as refused:
        return {"refused": str(refused)}


def _setup_class(function) -> type:
    """Return the notebook's Setup if the answer names it, so that isinstance(s, Setup) holds; else this one."""
    own = getattr(function, "__globals__", {}).get("Setup")
    same = (
        isinstance(own, type) and is_dataclass(own) and [f.name for f in fields(own)] == [f.name for f in fields(Setup)]
    )
    return own if same else Setup


def _numbers(result) -> list[float] | str:
    """Return [number, ...] for a number or a tuple of numbers; for anything else, its repr."""
    values = result if isinstance(result, tuple | list) else (result,)
    if all(isinstance(v, Real) and math.isfinite(v) for v in values):
        return [float(v) for v in values]
    return repr(result)[:80]


def measure(reference, program: str, setups: list[dict]) -> list[dict]:
    """Return the bytes that this rank holds between steps and at the peak, by category, for each setup."""
    warnings.simplefilter("ignore")
    return [_measured(getattr(programs, program), Setup(**s)) for s in setups]


def _measured(program, s: Setup) -> dict:
    tracker = track_step(program, s)
    return {"resident": tracker.resident, "peak": tracker.peak.by_category()}


def count(reference, setups: list[dict]) -> list[dict]:
    """Return, for each setup, the elements of a block's parameters and of the others, and the bytes a block saves."""
    return [_counted(Setup(**s)) for s in setups]


def _counted(s: Setup) -> dict:
    config = ModelConfig(s.V, s.D, s.L, s.H, s.K, s.F, max_seq_len=s.T)
    model = programs.make_model(s)
    blocks = sum(p.numel() for p in model.blocks.parameters())
    x = torch.randn(s.B, s.T, s.D, requires_grad=True)
    angles = rotary_angles(s.T, s.E, config.rope_theta, torch.device("cpu"))
    kept = kept_tensors(Block(config), x, *angles)
    return {
        "block": blocks // s.L,
        "root": sum(p.numel() for p in model.parameters()) - blocks,
        "kept": sum(t.untyped_storage().nbytes() for t in kept) - sum(t.nbytes for t in angles),
    }


REFERENCE = {"measure": None, "count": None}  # these drills need no answer
