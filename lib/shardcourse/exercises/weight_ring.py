"""The check of lesson 23's exercise: a weight's gradient from chunks of x that travel round a ring once more."""

from collections.abc import Callable
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor

from shardcourse.experiments.ring_products import problem, relative_error
from shardlab import LaunchError, launch
from shardlab.measure.traffic import record_traffic

N = 4


def problems(weight_gradient: Callable, timeout_s: float = 30) -> list[str]:
    """Return what is wrong with `weight_gradient(x, dy, product, pass_on, arrived)`, in words; [] if nothing is."""
    try:
        ranks = launch(_try, N, weight_gradient, device="cpu", timeout_s=timeout_s, stream=False)
    except LaunchError as error:
        waits = "some ranks wait for ever: every rank must send as often as it receives"
        return [waits if error.timed_out else f"it fails: {str(error).splitlines()[0]}"]
    return next((found for found in ranks if found), [])


def _try(weight_gradient: Callable) -> list[str]:
    p, events, kept, received = problem(seed=1), [], [0], WeakSet()  # type: ignore[var-annotated]

    def product(a: Tensor, b: Tensor) -> Tensor:
        events.append("product")
        kept.append(len(received))
        return a @ b

    def pass_on(x: Tensor):
        events.append("send")
        if x.shape != p.x.shape:
            raise ValueError(f"a message has the shape {list(x.shape)}; a chunk of x has {list(p.x.shape)}")
        me, got = dist.get_rank(), torch.empty_like(x)
        received.add(got)
        ops = [dist.P2POp(dist.isend, x, (me + 1) % N), dist.P2POp(dist.irecv, got, (me - 1) % N)]
        return got, dist.batch_isend_irecv(ops)

    def arrived(message):
        events.append("wait")
        got, works = message
        for work in works:
            work.wait()
        return got

    with record_traffic() as traffic:
        found = weight_gradient(p.x.clone(), p.dy, product, pass_on, arrived)
    if words := _wrong_numbers(found, p) or _wrong_messages(events, traffic.kinds()) or _wrong_order(events):
        return words
    return [f"the rank keeps {max(kept)} chunks that it received: two are enough"] if max(kept) > 2 else []


def _wrong_numbers(found: object, p) -> list[str]:
    rank = dist.get_rank()
    if not isinstance(found, Tensor) or found.shape != p.dw.shape:
        return [f"rank {rank}: the result is no tensor of the shape {list(p.dw.shape)}"]
    if relative_error(found, p.dw) < 1e-4:
        return []
    mine = p.x.t() @ p.dy.chunk(N)[rank]
    if relative_error(found, mine) < 1e-4:
        return [f"rank {rank}: this is the product of its own chunk alone; the gradient is the sum over all chunks"]
    return [
        f"rank {rank}: the gradient is wrong. After h hops, whose chunk is here, and which rows of dy belong to it?"
    ]


def _wrong_messages(events: list[str], kinds) -> list[str]:
    if kinds["all_gather"]:
        return ["an all_gather brings all chunks at once: then the rank holds all of x, and nothing is hidden"]
    if events.count("send") != N - 1:
        return [f"each rank sends {events.count('send')} chunks: {N - 1} are needed, as each rank has one already"]
    return []


def _wrong_order(events: list[str]) -> list[str]:
    """Check that each message starts before a product and is waited for after it."""
    flying = hidden = 0
    for event in events:
        if event == "send":
            flying += 1
        elif event == "product":
            hidden += flying > 0
        else:
            flying -= 1
    if hidden < N - 1:
        return [f"{hidden} of {N} products run while a chunk travels: send first, then multiply, then wait"]
    return []
