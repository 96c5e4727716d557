"""Setups drawn at grading time: three or four a check. Each moment of a prediction decides the peak in one of them.

*wide*: few tokens and blocks, so states and gradients decide.
*viewed*: few tokens and small matrices, so a gradient that is being copied into its bucket does not decide. The lab's
statement leaves this gradient out.
*long*: B T is at least 2 D, so activations decide.
*deep*: so many blocks that it matters whether all of them are gathered at once.
*broad*: few blocks and so large an F that the feed-forward part decides, and one more gathered block matters.
*worded*: so large a vocabulary that the loss decides.
*dealt*: so large a vocabulary that whole parameters can't be divided evenly between ranks.
"""

import random
from dataclasses import asdict

from grading.checks.lab1_memory.programs import Setup

_HEADS = ((2, 32), (4, 16), (6, 16), (3, 32), (4, 32), (8, 16), (2, 64))  # H, E


def wide(draw: random.Random, **more) -> dict:
    return _few_tokens(draw, _shape(draw, range(2, 4), (192, 256, 320)), more)


def viewed(draw: random.Random, **more) -> dict:
    return _few_tokens(draw, _shape(draw, range(6, 8), (64, 96)), more) | {"views": True}


def _few_tokens(draw: random.Random, s: dict, more: dict) -> dict:
    tokens = s["D"] // draw.choice((6, 8)) // 8 * 8
    return _setup(s, 1, tokens, more)


def long(draw: random.Random, vocabularies=(64, 128), **more) -> dict:
    s = _shape(draw, range(3, 7), vocabularies)
    return _setup(s, *_tokens(draw, s), more)


def deep(draw: random.Random, **more) -> dict:
    s = _shape(draw, range(6, 8), (64, 96, 128))
    return _setup(s, 1, 2 * s["D"] + draw.choice((0, 8, 16)), more)


def broad(draw: random.Random, blocks: int = 2, tokens: int = 4, **more) -> dict:
    """Draw a *broad* setup. `tokens`: B T in multiples of D."""
    s = _shape(draw, range(blocks, blocks + 1), (64,), (5, 6))
    return _setup(s, 1, tokens * s["D"] + draw.choice((0, 8, 16)), more)


def worded(draw: random.Random, **more) -> dict:
    s = _shape(draw, range(2, 4), (3072, 4096))
    return _setup(s, *_tokens(draw, s), more)


def dealt(draw: random.Random, **more) -> dict:
    s = _shape(draw, range(2, 3), (3840, 4096))
    return _setup(s, 1, 3 * s["D"] // 4, more)


def _shape(draw: random.Random, blocks: range, vocabularies: tuple[int, ...], hidden_over_dim=(2, 3.5)) -> dict:
    heads, width = draw.choice(_HEADS)
    dim = heads * width
    kv_heads = draw.choice([k for k in range(1, heads) if heads % k == 0])  # fewer than H
    least, most = (int(k * dim) for k in hidden_over_dim)
    hidden = draw.choice(range(least, most, 32))
    sizes = {"V": draw.choice(vocabularies), "L": draw.choice(blocks)}
    return sizes | {"D": dim, "H": heads, "K": kv_heads, "E": width, "F": hidden}


def _tokens(draw: random.Random, s: dict) -> tuple[int, int]:
    batch = draw.choice((1, 2, 4))
    return batch, draw.choice(range(2 * s["D"], 3 * s["D"], 16)) // batch


def _setup(s: dict, batch: int, tokens: int, more: dict) -> dict:
    return asdict(Setup(**s | {"N": 1, "B": batch, "T": tokens} | more))


def setups(program: str, draw: random.Random) -> list[dict]:
    """Draw the setups of a program; together they use one or two numbers of ranks."""
    return {
        "one_rank": lambda: [wide(draw), broad(draw), worded(draw)],
        "ddp": lambda: [wide(draw, N=4), viewed(draw, N=4), broad(draw, N=2, views=True), worded(draw, N=2)],
        "zero1": lambda: [dealt(draw, N=4), broad(draw, N=2), viewed(draw, N=4)],
        "fsdp": lambda: [
            deep(draw, N=4),
            broad(draw, tokens=2, N=2),
            long(draw, (768, 1024), N=2, reshard=False),
            worded(draw, N=2),
        ],
        "fsdp_bf16": lambda: [deep(draw, N=4), broad(draw, blocks=3, tokens=2, N=4), worded(draw, N=2)],
    }[program]()
