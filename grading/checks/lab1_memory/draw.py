"""Setups drawn at grading time: some six a check. Each term of a prediction decides the peak in one of them.

*wide*: few tokens and blocks, so states and gradients decide.
*viewed*: few tokens and small matrices, so a gradient that is being copied into its bucket does not decide. The lab's
statement leaves this gradient out.
*long*: B T is at least 2 D, so activations decide.
*deep*: so many blocks that it matters whether all of them are gathered at once.
*broad*: few blocks and so large an F that the feed-forward part decides, and one more gathered block matters.
*worded*: so large a vocabulary that the loss decides.
*dealt*: so large a vocabulary that whole parameters can't be divided evenly between ranks.
*uneven*: three large matrices a block, of nine, for four ranks, so their number can't be divided evenly.
*early*: few tokens and a large F, so the first block's backward decides, with `down`'s gradient, and V is so large that
it matters whether the embedding has its gradient yet.
*mixed*: as large a V as F allows, so a block decides, with the gradients of the output layer and of `down`.
*narrow*: a small V and F, so a block decides, and the D in 2 F + D matters, and so does B: there are two sequences.
*normed*: a V and an F that are close to D, so the loss decides, and the last norm matters.
*lengthy*: many tokens and blocks and a small F, so the blocks' inputs matter, cos and sin too, which two
sequences share.
"""

import random
from dataclasses import asdict

from grading.checks.lab1_memory.programs import Setup

_HEADS = ((2, 32), (4, 16), (6, 16), (3, 32), (4, 32), (8, 16), (2, 64))  # H, E
_TWO, _MANY = [h for h in _HEADS if h[0] == 2], [h for h in _HEADS if h[0] >= 4]  # cos and sin are large, small
_WIDE = [(heads, width) for heads, width in _MANY if heads * width >= 96]


def wide(draw: random.Random, **more) -> dict:
    return _few_tokens(draw, _shape(draw, range(2, 4), (192, 256, 320)), more)


def viewed(draw: random.Random, **more) -> dict:
    s = _shape(draw, range(7, 8), (64,), (1, 1.2))
    return _few_tokens(draw, s, more) | {"views": True}


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


def worded(draw: random.Random, hidden_over_dim=(2, 3.5), **more) -> dict:
    s = _shape(draw, range(2, 4), (3072, 4096), hidden_over_dim)
    return _setup(s, *_tokens(draw, s), more)


def dealt(draw: random.Random, **more) -> dict:
    s = _shape(draw, range(2, 3), (3840, 4096))
    return _setup(s, 1, 3 * s["D"] // 4, more)


def uneven(draw: random.Random, **more) -> dict:
    s = _shape(draw, range(3, 4), (64,), (5, 6))
    return _setup(s, 1, 8 * s["D"], more)


def late(draw: random.Random, **more) -> dict:
    s = _shape(draw, range(2, 3), (64,), (5, 6))
    return _setup(s | {"V": 2 * s["F"] + 64}, 1, 8 * s["D"], more)


def early(draw: random.Random, **more) -> dict:
    s = _shape(draw, range(2, 3), (64,), (6, 7))
    return _setup(s | {"V": 4 * s["D"]}, 1, s["D"] // 2, more)


def mixed(draw: random.Random, vocabulary: int = 4, hidden_over_dim=(5, 6), tokens: int = 1, **more) -> dict:
    """Draw a *mixed* setup. `vocabulary`, `tokens`: V and B T in multiples of D."""
    s = _shape(draw, range(2, 3), (64,), hidden_over_dim)
    return _setup(s | {"V": vocabulary * s["D"]}, 1, tokens * s["D"], more)


def narrow(draw: random.Random, **more) -> dict:
    s = _shape(draw, range(2, 3), (64,), (2.5, 3), _WIDE)
    return _setup(s, 2, 3 * s["D"] // 2, more)


def normed(draw: random.Random, vocabulary: int = 2, hidden_over_dim=(1, 1.5), **more) -> dict:
    """Draw a *normed* setup. `vocabulary`: V in multiples of D."""
    s = _shape(draw, range(2, 3), (64,), hidden_over_dim, _MANY)
    return _setup(s | {"V": vocabulary * s["D"]}, *_tokens(draw, s), more)


def lengthy(draw: random.Random, **more) -> dict:
    s = _shape(draw, range(7, 8), (64,), (1.5, 2), _TWO)
    return _setup(s, 2, 4 * s["D"], more)


def _shape(
    draw: random.Random, blocks: range, vocabularies: tuple[int, ...], hidden_over_dim=(2, 3.5), heads_of=_HEADS
) -> dict:
    heads, width = draw.choice(heads_of)
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
        "one_rank": lambda: [
            wide(draw),
            broad(draw),
            worded(draw),
            early(draw),
            mixed(draw),
            narrow(draw),
            normed(draw),
        ],
        "ddp": lambda: [
            wide(draw, N=4),
            viewed(draw, N=4),
            broad(draw, N=2, views=True),
            broad(draw, N=2),
            worded(draw, N=2),
            early(draw, N=2),
            mixed(draw, N=2),
            normed(draw, N=2),
            narrow(draw, N=2),
        ],
        "zero1": lambda: [
            dealt(draw, N=4),
            broad(draw, N=2),
            viewed(draw, N=2),
            uneven(draw, N=4),
            late(draw, N=4),
            narrow(draw, N=2),
            normed(draw, N=2),
        ],
        "fsdp": lambda: [
            deep(draw, N=4),
            broad(draw, tokens=2, N=2),
            broad(draw, blocks=3, tokens=2, N=2, reshard=False),
            mixed(draw, 8, (6.5, 7.5), 2, N=2),
            long(draw, (768, 1024), N=2, reshard=False),
            worded(draw, (5, 6), N=2),
            narrow(draw, N=2),
        ],
        "fsdp_bf16": lambda: [
            deep(draw, N=4),
            broad(draw, blocks=3, tokens=2, N=4),
            mixed(draw, 6, (5, 6), 2, N=2),
            normed(draw, 8, (1.5, 2), N=2),
            lengthy(draw, N=2),
            worded(draw, (5, 6), N=2),
        ],
    }[program]()
