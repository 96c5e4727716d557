"""Tensors that ranks hold in intervals, in a form that torch.distributed.checkpoint and `full_state` can use.

A checkpoint sees a tensor as a set of *chunks*: rectangles at an offset. An FSDP2 shard is one rectangle. ZeRO's and
FSDP1's shards are intervals of the flattened tensor, and so begin and end within a row:

    . . . . x x x       one chunk
    x x x x x x x  \\
    x x x x x x x  /    one chunk
    x x . . . . .       one chunk

An interval of an n-dimensional tensor is at most 2n-1 rectangles: whole rows in the middle, and part of a row on either
side. Such a part is an interval of a tensor of n-1 dimensions, from its start or to its end.
"""

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

Size = torch.Size


class Part(Tensor):
    """Rectangles of a tensor of shape `size` that this rank holds; only for checkpoints, with no other operations.

    `pieces` maps offsets in the whole to views of memory in the rectangle's shape; loading writes there.
    Source: the methods by which torch's DTensor describes itself to checkpoints.
    """

    @staticmethod
    def __new__(cls, size: Size, like: Tensor, pieces: dict[Size, Tensor]) -> "Part":
        return Tensor._make_wrapper_subclass(cls, size, dtype=like.dtype, device=like.device)

    def __init__(self, size: Size, like: Tensor, pieces: dict[Size, Tensor]) -> None:
        self.pieces = pieces

    @classmethod
    def interval(cls, size: Size, start: int, flat: Tensor) -> "Part":
        """Return elements [start, start + len(flat)) of a flattened tensor of shape `size`, held in `flat`."""
        pieces, taken = {}, 0
        for offsets, sizes in rectangles(size, start, start + flat.numel()):
            pieces[Size(offsets)] = flat[taken : taken + prod(sizes)].view(sizes)
            taken += prod(sizes)
        return cls(size, flat, pieces)

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(offsets, piece.shape) for offsets, piece in self.pieces.items()]

    def __create_write_items__(self, fqn: str, _) -> list[WriteItem]:
        items = []
        for chunk in self.__create_chunk_list__():
            properties = TensorProperties.create_from_tensor(self.pieces[chunk.offsets])
            data = TensorWriteData(chunk, properties, self.shape)
            items.append(WriteItem(MetadataIndex(fqn, chunk.offsets), WriteItemType.SHARD, tensor_data=data))
        return items

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        return self.pieces[index.offset]

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(f"{func}: this is a part of a tensor, for checkpoints only")

    def __repr__(self, *, tensor_contents=None) -> str:
        return f"Part({list(self.shape)}, {self.dtype}, {[(*o, *p.shape) for o, p in self.pieces.items()]})"


def held(t: Tensor) -> Iterator[tuple[tuple[slice, ...], Tensor]]:
    """Yield (slices of the whole, memory) of each rectangle of a plain tensor, a DTensor or a Part on this rank."""
    if not hasattr(t, "__create_chunk_list__"):
        yield tuple(slice(n) for n in t.shape), t
        return
    for chunk in t.__create_chunk_list__():
        where = tuple(slice(o, o + n) for o, n in zip(chunk.offsets, chunk.sizes, strict=True))
        yield where, t.__get_tensor_shard__(MetadataIndex("", chunk.offsets))


def rectangles(size: tuple[int, ...], start: int, end: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield (offsets, sizes) of the rectangles that make up elements [start, end) of a tensor, in order."""
    if start >= end:
        return
    if not size:
        yield (), ()
        return
    row = prod(size[1:])
    first, last = -(-start // row), end // row  # whole rows
    if first > last:
        yield from _within_row(last, size, start - last * row, end - last * row)
        return
    yield from _within_row(first - 1, size, start - (first - 1) * row, row if start < first * row else 0)
    if first < last:
        yield (first, *(0 for _ in size[1:])), (last - first, *size[1:])
    yield from _within_row(last, size, 0, end - last * row)


def _within_row(i: int, size: tuple[int, ...], start: int, end: int) -> Iterator:
    for offsets, sizes in rectangles(size[1:], start, end):
        yield (i, *offsets), (1, *sizes)
