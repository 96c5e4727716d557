"""Check of lesson 3a's exercise: parameters are put into buckets as DDP does it."""

from collections.abc import Callable

import torch
from torch import nn

from shardlab.ddp import assign_buckets

_SIZES = {
    "three equal parameters": ([4, 4, 4], 16, 32),
    "a parameter larger than the cap": ([2, 100, 3], 16, 64),
    "a bucket that ends exactly at its cap": ([8, 8, 8, 8, 4], 32, 64),
    "twenty parameters": ([5, 1, 9, 2, 2, 7, 30, 1, 1, 4, 6, 8, 3, 3, 12, 5, 2, 9, 1, 4], 24, 80),
}


def check_buckets(fill: Callable) -> str:
    """Return in words what is wrong with `fill(params, first_cap_bytes, cap_bytes)`, or that it is right."""
    try:
        for name, (sizes, *caps) in _SIZES.items():
            if problem := _problem(fill, [nn.Parameter(torch.zeros(n)) for n in sizes], caps):
                return f"{name[0].upper()}{name[1:]}, caps {caps[0]} and {caps[1]} bytes: {problem}"
        mixed = [nn.Parameter(torch.zeros(4, dtype=(torch.float32, torch.bfloat16)[i % 2])) for i in range(9)]
        if problem := _problem(fill, mixed, [16, 16]):
            return f"Two dtypes in turn: {problem}"
    except NotImplementedError:
        return "fill_buckets is not written yet."
    except Exception as error:  # the reader's own: it is shown, and the notebook goes on
        return f"It stops with {type(error).__name__}: {error}"
    return "Right: the same buckets as DDP's."


def _problem(fill: Callable, params: list[nn.Parameter], caps: list[int]) -> str:
    number = {id(p): i for i, p in enumerate(params)}
    found = [[number[id(p)] for p in bucket] for bucket in fill(list(params), *caps)]
    expected = [[number[id(p)] for p in bucket] for bucket in assign_buckets(params, *caps)]
    if any(len({params[i].dtype for i in bucket}) > 1 for bucket in found):
        return "a bucket holds two dtypes. One flat buffer has one dtype."
    if sorted(i for bucket in found for i in bucket) != list(range(len(params))):
        return f"each parameter should be in one bucket. Found: {found}."
    if found and found[0][:1] == [0] and len(params) > 1 and expected[0][0] != 0:
        return "the first bucket begins with the first parameter. Backward makes the last one's gradient first."
    return "" if found == expected else f"parameters {found}; expected {expected}."
