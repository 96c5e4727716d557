"""Layout of optimizer states in a file and in buffers, for `file`.

Vocabulary. A *span* is one state of a parameter, such as exp_avg, or a part of it, in the file. A *piece* is an
interval of a flattened parameter, with the spans of all its states. A *chunk* is as many pieces as fit a buffer.

In the file each state of a parameter is contiguous, so that it can be viewed as a tensor. In a buffer the spans of a
chunk follow one another.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from shardlab.shard_groups import local

ALIGN = 64  # pieces begin at multiples of so many elements: vectorised kernels round their last few by other code


class Span(NamedTuple):
    """One state of a parameter, or of a piece of it, in the file."""

    name: str
    dtype: torch.dtype
    offset: int  # bytes
    n_bytes: int

    def cut(self, start: int, end: int) -> "Span":
        size = self.dtype.itemsize
        return self._replace(offset=self.offset + start * size, n_bytes=(end - start) * size)


@dataclass(eq=False)
class Piece:
    """Elements [start, end) of this rank's part of `param`, flattened."""

    param: nn.Parameter
    group: dict
    start: int
    end: int
    spans: list[Span]


def layout(groups: list[dict], states_of: Callable[[dict, nn.Parameter], dict[str, torch.dtype]]) -> list[Piece]:
    """Return each parameter as one piece, with its states one after another. `states_of` gives names and dtypes."""
    pieces, end_of_file = [], 0
    for group in groups:
        for p in group["params"]:
            pieces.append(Piece(p, group, 0, local(p).numel(), []))
            for name, dtype in states_of(group, p).items():
                span = Span(name, dtype, end_of_file, local(p).numel() * dtype.itemsize)
                end_of_file += rounded_up(span.n_bytes)
                pieces[-1].spans.append(span)
    return pieces


def chunks(pieces: list[Piece], buffer_bytes: int) -> list[list[Piece]]:
    """Return the pieces, cut if necessary, in chunks that fit a buffer, in order.

    Raises ValueError if the states of ALIGN elements do not fit a buffer.
    """
    cut, chunk, room = [], [], 0
    for piece in pieces:
        for part in _parts(piece, buffer_bytes):
            size = sum(rounded_up(span.n_bytes) for span in part.spans)
            if size > room or not cut:
                chunk, room = [], buffer_bytes
                cut.append(chunk)
            chunk.append(part)
            room -= size
    return cut


def _parts(piece: Piece, buffer_bytes: int) -> Iterator[Piece]:
    elements = buffer_bytes // sum(span.dtype.itemsize for span in piece.spans) // ALIGN * ALIGN
    if not elements:
        raise ValueError(f"buffer_bytes={buffer_bytes} does not hold the states of {ALIGN} elements")
    for start in range(0, max(piece.end, 1), elements):  # at least one: a rank without elements counts steps too
        end = min(start + elements, piece.end)
        yield Piece(piece.param, piece.group, start, end, [span.cut(start, end) for span in piece.spans])


def placed(chunk: list[Piece], buffer: Tensor) -> Iterator[tuple[Piece, Span, Tensor]]:
    """Yield (piece, span, the buffer's bytes for it) for each state of each piece."""
    start = 0
    for piece in chunk:
        for span in piece.spans:
            yield piece, span, buffer[start : start + span.n_bytes]
            start += rounded_up(span.n_bytes)


def rounded_up(n_bytes: int) -> int:
    return -(-n_bytes // 8) * 8  # a view of any dtype may begin at a multiple of 8


def elementwise_states(make: Callable, group: dict, p: nn.Parameter) -> dict[str, torch.dtype]:
    """Return names and dtypes of the states that have the parameter's size, found by two steps on a few numbers.

    Raises ValueError if two halves, updated separately, differ from the whole: then it is not element-wise.
    """
    for key, value in make(group, torch.zeros(2)).param_groups[0].items():
        group.setdefault(key, value)  # the class's own defaults: betas, eps ...
    lively = group | ({"lr": 0.1} if "lr" in group else {})  # a scheduler may begin with 0, which hides differences

    def updated(*intervals: slice) -> tuple[Tensor, dict]:
        w, g = (torch.linspace(-1, 1, 2 * ALIGN, dtype=p.dtype, device=p.device) for _ in range(2))
        for interval in intervals:
            part = w[interval]
            part.grad = g[interval]
            optimizer = make(lively, part)
            optimizer.step()
            optimizer.step()
        return w, optimizer.state[part]

    try:
        (whole, states), (halves, _) = updated(slice(None)), updated(slice(ALIGN), slice(ALIGN, None))
    except Exception as error:
        raise ValueError(f"the optimizer must be element-wise: on a part of a parameter it fails: {error}") from error
    tensors = {name: t for name, t in states.items() if torch.is_tensor(t) and t.ndim}
    if not torch.equal(whole, halves) or any(t.shape != whole.shape for t in tensors.values()):
        raise ValueError("the optimizer must be element-wise: this one updates a part of a parameter by other numbers")
    if not tensors:
        raise ValueError("the optimizer keeps no states of a parameter's size: there is nothing to put into a file")
    return {name: t.dtype for name, t in tensors.items()}
