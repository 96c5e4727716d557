"""Collectives built from point-to-point messages: what an all_reduce is, and what it costs.

Vocabulary. The N ranks of a group form a *ring*: each sends to the next and receives from the previous one. A tensor is
cut into N *chunks*, and rank r *owns* chunk r. In a *step* each rank sends one message and receives one, at the same
time.

First comes the naive all_reduce, which sends whole tensors; then reduce_scatter and all_gather, which send chunks; then
the all_reduce that consists of these two, and a broadcast along a tree. At the end are the costs.

Each function gives the result of torch's function of the same name, and waits for it. Results are equal to the bit for
integers, for MIN and MAX, and for one or two ranks; otherwise up to the rounding of N-1 sums in another order. (Since
2.13 torch calls two of them all_gather_single and reduce_scatter_single, and these names still work.)

Source: Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce algorithms"; Thakur, Rabenseifner & Gropp 2005.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

SUM, AVG = dist.ReduceOp.SUM, dist.ReduceOp.AVG
_COMBINE: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
    SUM: torch.add,
    AVG: torch.add,
    dist.ReduceOp.PRODUCT: torch.mul,
    dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.MAX: torch.maximum,
}


# The naive version


def naive_all_reduce(tensor: Tensor, op=SUM, group: dist.ProcessGroup | None = None) -> None:
    """Send every rank's whole tensor once around the ring; every rank adds up the tensors that pass.

    Every rank begins the sum with its own tensor, so the ranks add in different orders and get different last bits.

    Sends: (N-1) times the tensor's bytes a rank.
    """
    rank, n, combine = *_place(group), _combine_by(op)
    passing = total = _flat(tensor)
    for _ in range(n - 1):
        passing = _step(passing, torch.empty_like(passing), rank, n, group)
        total = combine(total, passing)
    _flat(tensor).copy_(total / n if op == AVG else total)


# What is used in practice

# [Note: the order of a sum]
# Floating-point addition is not associative: (a + b) + c and a + (b + c) may differ in the last bit. In the ring, chunk
# c starts at rank c+1, and each rank on the way adds its own values to those that arrive; rank c adds last. So
#
#     chunk c = (((x[c+1] + x[c+2]) + ...) + x[c-1]) + x[c]          indices modulo N
#
# Each chunk is added up in its own order, not in that of a loop over ranks 0, 1, 2, .... So a result may differ from
# that of one process, or of another algorithm, by N-1 roundings. But each chunk is added up only once, and all_gather
# copies its owner's bits. So all ranks end with the same bits, whatever the order. Training depends on that: the
# replicas' weights must not drift apart, and nothing compares them later.


def reduce_scatter_tensor(output: Tensor, input: Tensor, op=SUM, group: dist.ProcessGroup | None = None) -> None:
    """Set rank r's `output` to chunk r of the sum of all ranks' `input`; (S,) from (N * S,).

    Sends: (N-1)/N of `input` a rank, in N-1 steps.
    Keeps: two chunks, while it runs.

    Raises ValueError if `output` is not one N-th of `input`, of the same dtype.
    """
    rank, n = _place(group)
    _check_sizes(rank, n, whole=input, shard=output)
    _flat(output).copy_(_ring_reduce_scatter(_flat(input).tensor_split(n), op, group))


def all_gather_into_tensor(output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Set every rank's `output_tensor` to all ranks' `input_tensor`, one after another; (N * S,) from (S,).

    Sends: (N-1)/N of `output_tensor` a rank, in N-1 steps.

    Raises ValueError if `input_tensor` is not one N-th of `output_tensor`, of the same dtype.
    """
    rank, n = _place(group)
    _check_sizes(rank, n, whole=output_tensor, shard=input_tensor)
    chunks = _flat(output_tensor).tensor_split(n)
    chunks[rank].copy_(_flat(input_tensor))
    _ring_all_gather(chunks, group)


def all_reduce(tensor: Tensor, op=SUM, group: dist.ProcessGroup | None = None) -> None:
    """Set `tensor` to the sum of all ranks' tensors: reduce_scatter, then all_gather. Any size: chunks may be uneven.

    Sends: 2 (N-1)/N of the tensor a rank, in 2 (N-1) steps: for a thousand ranks about as many bytes as for ten.
    Keeps: two chunks, while it runs.
    """
    rank, n = _place(group)
    chunks = _flat(tensor).tensor_split(n)
    chunks[rank].copy_(_ring_reduce_scatter(chunks, op, group))
    _ring_all_gather(chunks, group)


def broadcast(
    tensor: Tensor, src: int | None = None, group: dist.ProcessGroup | None = None, *, group_src: int | None = None
) -> None:
    """Set `tensor` to that of rank `src` (`group_src`: its number in the group), along a binomial tree.

    In each step every rank that has the tensor sends it to a rank that does not: 1, 2, 4, ... ranks have it.

    Sends: the tensor, log2(N) times (rounded up) from the source, less often or never from the others.
    """
    rank, n = _place(group)
    source = dist.get_group_rank(group or dist.group.WORLD, src) if group_src is None else group_src
    place = (rank - source) % n  # this rank's place in the tree, whose root is the source
    have = 1
    while have < n:
        if place < have and place + have < n:
            dist.send(_flat(tensor), group=group, group_dst=(rank + have) % n)
        elif have <= place < 2 * have:
            dist.recv(_flat(tensor), group=group, group_src=(rank - have) % n)
        have *= 2


# The ring


def _ring_reduce_scatter(chunks: tuple[Tensor, ...], op, group) -> Tensor:
    """Return this rank's chunk of the sum; `chunks` are its own summands. See [Note: the order of a sum]."""
    rank, n, combine = *_place(group), _combine_by(op)
    partial = chunks[rank - 1]  # negative indices count back around the ring
    for step in range(1, n):
        mine = chunks[rank - 1 - step]
        partial = combine(_step(partial, torch.empty_like(mine), rank, n, group), mine)
    return partial / n if op == AVG else partial


def _ring_all_gather(chunks: tuple[Tensor, ...], group) -> None:
    """Fill in all chunks; each rank first sends the one that it owns, then the one that it received last."""
    rank, n = _place(group)
    for step in range(n - 1):
        _step(chunks[rank - step], chunks[rank - step - 1], rank, n, group)


def _step(outgoing: Tensor, incoming: Tensor, rank: int, n: int, group) -> Tensor:
    """Send and receive one message at the same time: if every rank sent first and then waited, all might wait for ever.

    The receive comes first. gloo announces that it is ready for a message on the connection that its own message uses.
    With two ranks the announcement would wait behind that message, and the two directions would take turns.
    """
    from_previous = dist.P2POp(dist.irecv, incoming, group=group, group_peer=(rank - 1) % n)
    to_next = dist.P2POp(dist.isend, outgoing, group=group, group_peer=(rank + 1) % n)
    for work in dist.batch_isend_irecv([from_previous, to_next]):
        work.wait()
    return incoming


def _place(group: dist.ProcessGroup | None) -> tuple[int, int]:
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise ValueError(f"rank {dist.get_rank()} is not in this group: only its members may call its collectives")
    return rank, n


def _combine_by(op) -> Callable[[Tensor, Tensor], Tensor]:
    if op not in _COMBINE:
        raise ValueError(f"op={op} can't be done here: SUM, AVG, PRODUCT, MIN and MAX can")
    return _COMBINE[op]


def _flat(tensor: Tensor) -> Tensor:
    return tensor.detach().view(-1)


def _check_sizes(rank: int, n: int, whole: Tensor, shard: Tensor) -> None:
    if shard.numel() * n != whole.numel() or shard.dtype != whole.dtype:
        raise ValueError(
            f"rank {rank}: {n} times {list(shard.shape)} {shard.dtype} is not {list(whole.shape)} {whole.dtype}: "
            "pad the whole tensor to a multiple of the world size"
        )


# What they cost


@dataclass(frozen=True)
class Cost:
    """Cost of one collective: the messages that must follow one another, and the bytes that the busiest rank sends."""

    steps: int
    sent_bytes: float

    def seconds(self, alpha_s: float, bytes_per_s: float) -> float:
        """Seconds in the alpha-beta model: `alpha_s` of latency a step, plus each byte's time on the link."""
        return self.steps * alpha_s + self.sent_bytes / bytes_per_s


def naive_all_reduce_cost(n_bytes: int, world_size: int) -> Cost:
    return Cost(world_size - 1, (world_size - 1) * n_bytes)


def ring_reduce_scatter_cost(n_bytes: int, world_size: int) -> Cost:
    """Cost of a ring reduce_scatter; `n_bytes` is the unsharded size, as in all these functions."""
    return Cost(world_size - 1, (world_size - 1) / world_size * n_bytes)


ring_all_gather_cost = ring_reduce_scatter_cost


def ring_all_reduce_cost(n_bytes: int, world_size: int) -> Cost:
    return Cost(2 * (world_size - 1), 2 * (world_size - 1) / world_size * n_bytes)


def tree_broadcast_cost(n_bytes: int, world_size: int) -> Cost:
    steps = (world_size - 1).bit_length()  # log2, rounded up
    return Cost(steps, steps * n_bytes)
