"""A functional collective counts as many bytes as torch's eager call of the same tensors, and as the ring's formula."""

import warnings
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from shardlab import launch
from shardlab.measure.traffic import Traffic, record_traffic
from shardsim import simulated

ELEMENTS = 96  # float32, divisible by 2 and by 4
BOTH = ELEMENTS + 3 * ELEMENTS  # of two tensors in one call


def recorded(call) -> tuple[dict, float]:
    """Return what a call sends by kind, and its bytes. Waiting for the result counts as nothing."""
    with record_traffic() as traffic:
        call()
    return found(traffic)


def found(traffic: Traffic) -> tuple[dict, float]:
    kinds = {kind: traffic.sent_bytes(kind) for kind in traffic.kinds()}
    assert sum(kinds.values()) == traffic.sent_bytes()
    return kinds, traffic.sent_bytes()


def wait(result) -> None:
    for tensor in [result] if isinstance(result, torch.Tensor) else result:
        torch.ops._c10d_functional.wait_tensor(tensor)


def of_gathers(n: int, name: str) -> dict:
    share, pair = torch.ones(ELEMENTS // n), [torch.ones(ELEMENTS // n), torch.ones(3 * ELEMENTS // n)]
    ops, group = torch.ops._c10d_functional, dist.group.WORLD
    return {
        "eager": lambda: dist.all_gather_into_tensor(torch.empty(ELEMENTS), share),
        "functional": lambda: wait(functional.all_gather_tensor(share, 0, group)),
        "operator": lambda: wait(ops.all_gather_into_tensor(share, n, name)),
        "operator into": lambda: wait(ops.all_gather_into_tensor_out(share, n, name, out=torch.empty(ELEMENTS))),
        "coalesced": lambda: wait(functional.all_gather_into_tensor_coalesced(pair, group)),
        "coalesced operator": lambda: wait(ops.all_gather_into_tensor_coalesced(pair, n, name)),
    }


def of_scatters(n: int, name: str) -> dict:
    whole, pair = torch.ones(ELEMENTS), [torch.ones(ELEMENTS), torch.ones(ELEMENTS, 3)]
    ops, group, share = torch.ops._c10d_functional, dist.group.WORLD, torch.empty(ELEMENTS // n)
    return {
        "eager": lambda: dist.reduce_scatter_tensor(share, whole),
        "functional": lambda: wait(functional.reduce_scatter_tensor(whole, "sum", 0, group)),
        "mean": lambda: wait(functional.reduce_scatter_tensor(whole, "avg", 0, group)),
        "operator": lambda: wait(ops.reduce_scatter_tensor(whole, "sum", n, name)),
        "operator into": lambda: wait(ops.reduce_scatter_tensor_out(whole, "sum", n, name, out=share)),
        "coalesced": lambda: wait(functional.reduce_scatter_tensor_coalesced(pair, "sum", [0, 0], group)),
        "coalesced operator": lambda: wait(ops.reduce_scatter_tensor_coalesced(pair, "sum", n, name)),
    }


def of_reduces(n: int, name: str) -> dict:
    whole, pair = torch.ones(ELEMENTS), [torch.ones(ELEMENTS), torch.ones(ELEMENTS, 3)]
    ops, group = torch.ops._c10d_functional, dist.group.WORLD
    return {
        "eager": lambda: dist.all_reduce(whole),
        "functional": lambda: wait(functional.all_reduce(whole, "sum", group)),
        "operator": lambda: wait(ops.all_reduce(whole, "sum", name)),
        "in place": lambda: wait(ops.all_reduce_(whole.clone(), "sum", name)),
        "coalesced": lambda: wait(functional.all_reduce_coalesced(pair, "sum", group)),
        "coalesced operator": lambda: wait(ops.all_reduce_coalesced(pair, "sum", name)),
    }


def of_broadcasts(n: int, name: str) -> dict:
    whole, ops = torch.ones(ELEMENTS), torch.ops._c10d_functional
    return {
        "eager": lambda: dist.broadcast(whole, 0),
        "functional": lambda: wait(functional.broadcast(whole, 0, dist.group.WORLD)),
        "operator": lambda: wait(ops.broadcast(whole, 0, name)),
        "in place": lambda: wait(ops.broadcast_(whole, 0, name)),
    }


FAMILIES = {
    "all_gather": (of_gathers, lambda n: (n - 1) / n),
    "reduce_scatter": (of_scatters, lambda n: (n - 1) / n),
    "all_reduce": (of_reduces, lambda n: 2 * (n - 1) / n),
    "broadcast": (of_broadcasts, lambda n: (n - 1) / n),
}


def all_families() -> dict:
    n, name = dist.get_world_size(), dist.group.WORLD.group_name
    made = {kind: calls(n, name) for kind, (calls, _) in FAMILIES.items()}
    return {(kind, how): recorded(call) for kind, calls in made.items() for how, call in calls.items()}


@pytest.mark.parametrize(("n", "network"), [(2, None), (4, None), (2, "1 Gb/s, 10 us")])
def test_a_functional_call_counts_as_the_eager_one(n, network):
    replies = launch(all_families, n, device="cpu", network=network and simulated(network))
    for counted in replies:
        for (kind, how), (kinds, sent) in counted.items():
            elements = BOTH if how.startswith("coalesced") else ELEMENTS
            due = FAMILIES[kind][1](n) * 4 * elements
            assert (kinds, sent) == ({kind: pytest.approx(due)}, pytest.approx(due)), f"{kind}: {how}"


def uneven(to: list[int], get: list[int]) -> dict:
    """Return what each way to send `to[r]` rows to rank r counts. Backward sends the gradients the other way round."""
    rows, name = torch.ones(sum(to), 5), dist.group.WORLD.group_name
    ways = {
        "eager": lambda: dist.all_to_all_single(torch.empty(sum(get), 5), rows, get, to),
        "functional": lambda: wait(functional.all_to_all_single(rows, get, to, dist.group.WORLD)),
        "operator": lambda: wait(torch.ops._c10d_functional.all_to_all_single(rows, get, to, name)),
    }
    return {how: recorded(call) for how, call in ways.items()}


def uneven_and_back() -> tuple[dict, tuple, float, float]:
    """Rank r sends (r+1)(d+1) rows to rank d. What was counted, and the bytes that leave this rank and come to it."""
    rank, n = dist.get_rank(), dist.get_world_size()
    to, get = [(rank + 1) * (d + 1) for d in range(n)], [(s + 1) * (rank + 1) for s in range(n)]
    counted = uneven(to, get)
    rows = torch.ones(sum(to), 5, requires_grad=True)
    with record_traffic() as forward:
        got = functional.all_to_all_single_autograd(rows, get, to, dist.group.WORLD).square().sum()
    with record_traffic() as backward:
        got.backward()
    passes = forward.sent_bytes(), backward.sent_bytes()
    return counted, passes, 20.0 * (sum(to) - to[rank]), 20.0 * (sum(get) - get[rank])


@pytest.mark.parametrize("n", [2, 4])
def test_an_uneven_all_to_all_counts_what_leaves_the_rank(n):
    for counted, passes, out, back in launch(uneven_and_back, n, device="cpu"):
        assert counted == {how: ({"all_to_all": out}, out) for how in ("eager", "functional", "operator")}
        assert passes == (out, back)


def around() -> list:
    """All rows go to the next rank and none stays. Then nothing is sent at all."""
    rank, n = dist.get_rank(), dist.get_world_size()
    to, get = [0] * n, [0] * n
    to[(rank + 1) % n] = get[(rank - 1) % n] = 7
    return [uneven(to, get), uneven([0] * n, [0] * n)]


def test_rows_that_all_leave_count_in_full():
    for moved, nothing in launch(around, 4, device="cpu"):
        assert [sent for _, sent in moved.values()] == [7 * 20.0] * 3
        assert [sent for _, sent in nothing.values()] == [0.0] * 3


def gathered_and_back() -> tuple[float, dict]:
    """Forward gathers; backward, which autograd runs in C++, reduces and scatters."""
    n = dist.get_world_size()
    share = torch.ones(ELEMENTS // n, requires_grad=True)
    whole = functional.all_gather_tensor_autograd(share, 0, dist.group.WORLD).square().sum()
    return recorded(whole.backward)


def compiled() -> list[tuple[float, dict]]:
    """Return what two calls of a compiled function count. A compiler that traces inside of the block sends nothing."""
    warnings.simplefilter("ignore")

    def scattered(x):
        return functional.reduce_scatter_tensor(x, "sum", 0, dist.group.WORLD) + 1

    call, whole = torch.compile(scattered, backend="aot_eager"), torch.ones(ELEMENTS)
    return [recorded(partial(call, whole)) for _ in range(2)]


@pytest.mark.parametrize("n", [2, 4])
def test_autograd_and_compiled_code_scatter_too(n):
    due = (n - 1) / n * 4 * ELEMENTS
    for reply in launch(gathered_and_back, n, device="cpu"):
        assert reply == ({"reduce_scatter": due}, due)
    for replies in launch(compiled, n, device="cpu"):
        assert replies == [({"reduce_scatter": due}, due)] * 2


def redistributed() -> dict:
    """Return what DTensor sends from one placement to another. Rows of the last one don't divide by the ranks."""
    n = dist.get_world_size()
    mesh, whole = init_device_mesh("cpu", (n,)), torch.ones(ELEMENTS, 3)
    share = whole.chunk(n)[0]
    ways = {
        "shard, replicate": (share, Shard(0), Replicate()),
        "columns, replicate": (torch.ones(8, ELEMENTS // n), Shard(1), Replicate()),
        "partial, replicate": (whole, Partial(), Replicate()),
        "partial, shard": (whole, Partial(), Shard(0)),
        "replicate, shard": (whole, Replicate(), Shard(0)),
    }
    counted = {}
    for way, (local, placement, target) in ways.items():
        tensor = DTensor.from_local(local, mesh, [placement])
        counted[way] = recorded(lambda t=tensor, to=target: t.redistribute(placements=[to]).to_local().sum())
    padded = distribute_tensor(torch.ones(4 * n + 1, 3), mesh, [Shard(0)])
    counted["padded"] = recorded(lambda: padded.full_tensor().sum())
    return counted


@pytest.mark.parametrize("n", [2, 4])
def test_dtensor_counts_by_the_same_formulas(n):
    share, size = (n - 1) / n, 4 * 3 * ELEMENTS
    due = {
        "shard, replicate": {"all_gather": share * size},
        "columns, replicate": {"all_gather": share * 4 * 8 * ELEMENTS},
        "partial, replicate": {"all_reduce": 2 * share * size},
        "partial, shard": {"reduce_scatter": share * size},
        "replicate, shard": {},
        "padded": {"all_gather": (n - 1) * 5 * 3 * 4},  # each rank sends as many rows as the fullest one has
    }
    for counted in launch(redistributed, n, device="cpu"):
        for way, kinds in due.items():
            assert counted[way] == (pytest.approx(kinds), pytest.approx(sum(kinds.values()))), way


def mixed() -> tuple[list, list, list]:
    """Blocks in blocks, an all_reduce of a reduce_scatter's size beside it, and a call after all blocks."""
    whole, n, name = torch.ones(ELEMENTS), dist.get_world_size(), dist.group.WORLD.group_name

    def scatter():
        wait(torch.ops._c10d_functional.reduce_scatter_tensor(whole, "sum", n, name))

    with torch.inference_mode(), record_traffic() as outer:
        scatter()
        dist.all_reduce(whole.clone())
        with record_traffic() as inner:
            scatter()
    with record_traffic() as later:
        dist.all_reduce(whole.clone())
    return [[c.kind for c in traffic.collectives] for traffic in (outer, inner, later)]


def test_blocks_may_lie_in_blocks_and_leave_nothing():
    for outer, inner, later in launch(mixed, 2, device="cpu"):
        assert outer == ["reduce_scatter", "all_reduce", "reduce_scatter"]
        assert (inner, later) == (["reduce_scatter"], ["all_reduce"])
