"""Check of lesson 5b's exercise: a unit that prefetches the next one in forward, and the previous one in backward."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor, nn

from shardcourse.experiments import small_fsdp
from shardcourse.experiments.measured_training import fresh_model, samples
from shardlab import LaunchError, launch
from shardlab.measure.traffic import record_traffic

N = 2


class Moment(NamedTuple):
    """Units that are gathered or on their way while a block computes."""

    phase: str  # forward or backward
    block: int
    begun: list[bool]  # for each block's unit, whether its memory is allocated


def link_units(model: nn.Module) -> nn.Module:
    """Set `next` and `previous` of each unit, in the order of forward: the root, then the blocks."""
    units = [model.unit, *(block.unit for block in model.blocks)]
    for unit, following in zip(units, [*units[1:], None], strict=True):
        unit.next = following
    for unit, before in zip(units, [units[-1], None, *units[1:-1]], strict=True):
        unit.previous = before  # backward begins with the root, and goes on with the last block
    return model


class _WrongWaits(Exception):
    """A block computes before its weights are there, or a rank waits for a gather that could still travel."""


def check_prefetch(unit_class: type) -> str:
    """Return in words what is wrong with the reader's unit, or that it is right."""
    try:
        words = launch(_try, N, unit_class, device="cpu", stream=False)[0]
    except LaunchError as error:
        return f"It fails. {str(error).strip().splitlines()[-1]}"
    return words or "Right: each unit is gathered while the one before it computes, in forward and in backward."


def _try(unit_class: type) -> str:
    expected_loss, expected, _, _ = _step(small_fsdp.HookedUnit)
    try:
        loss, gradients, moments, n_gathers = _step(unit_class)
    except NotImplementedError:
        return "PrefetchingUnit is not written yet."
    except _WrongWaits as error:
        dist.barrier()  # messages that nobody has waited for arrive
        return str(error)
    if problem := next(_wrong_moments(moments), ""):
        return problem
    if abs(loss - expected_loss) > 1e-4 * expected_loss:
        return f"The loss is {loss:.5f}, and should be {expected_loss:.5f}."
    if any(
        not (g is not None and g.allclose(e, rtol=1e-3, atol=1e-6)) for g, e in zip(gradients, expected, strict=True)
    ):
        return "The loss is right, and the gradients of the shards are not."
    wanted = 2 * (1 + len(moments) // 2)
    return "" if n_gathers == wanted else f"A step has {n_gathers} all_gathers, and {wanted} are enough."


def _step(unit_class: type) -> tuple[float, list[Tensor | None], list[Moment], int]:
    model = link_units(small_fsdp.by_blocks(fresh_model(), unit=unit_class))
    tokens, targets = samples(0, micro_batch=1, seq_len=16)
    with record_traffic() as traffic, _moments(model) as moments:
        loss = model(tokens, targets)
        loss.backward()
    return loss.item(), [p.grad for p in model.parameters()], moments, traffic.count("all_gather")


def _wrong_moments(moments: list[Moment]) -> Iterator[str]:
    n = len(moments) // 2
    for m in moments:
        step = 1 if m.phase == "forward" else -1
        when = f"While block {m.block} computes {m.phase},"
        other, further = m.block + step, m.block + 2 * step
        if 0 <= other < n and not m.begun[other]:
            yield f"{when} nothing is prefetched: block {other} comes next, and its gather has not begun."
        if 0 <= further < n and m.begun[further]:
            yield f"{when} block {further} is whole or on its way: only one unit should be prefetched."


@contextmanager
def _moments(model: nn.Module) -> Iterator[list[Moment]]:
    """Record a Moment in forward and in backward of each block."""
    found: list[Moment] = []
    waits, original = [0], dist.Work.wait

    def wait(work, *args, **kwargs):
        waits[0] += 1
        return original(work, *args, **kwargs)

    def see(phase: str, i: int) -> None:
        begun = [block.unit.whole.untyped_storage().nbytes() > 0 for block in model.blocks]
        found.append(Moment(phase, i, begun))

    def watch(i: int, output: Tensor) -> None:
        see("forward", i)
        if waits[0] != 2 + i:  # the root's and each block's so far
            raise _WrongWaits(f"Block {i} computes forward when rank 0 has waited for {waits[0]} gathers, not {2 + i}.")
        output.register_hook(lambda grad: see("backward", i))

    handles = [
        block.feed_forward.register_forward_hook(lambda module, args, output, i=i: watch(i, output))
        for i, block in enumerate(model.blocks)
    ]
    dist.Work.wait = wait
    try:
        yield found
    finally:
        dist.Work.wait = original
        for handle in handles:
            handle.remove()
