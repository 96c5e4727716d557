"""Our collectives give torch's results, send what the formulas say, and take the time that the formulas say.

[Note: tolerance] A sum of N floats has N-1 roundings of at most u = eps / 2 each, in whatever order: two orders differ
by at most (N-1) eps times the sum of the absolute values. A mean adds one rounding on each side: N eps.
"""

import time
from statistics import median

import pytest
import torch
import torch.distributed as dist

from shardlab import LaunchError, launch
from shardlab import point_to_point_collectives as ours
from shardlab.measure.traffic import record_traffic
from shardsim import simulated
from shardsim.link import Link
from shardsim.network import Network

Op = dist.ReduceOp
EXACT = {Op.MIN, Op.MAX}
SIZES = (0, 1, 2, 5, 96, 1001)  # of an all_reduce: fewer elements than ranks, and sizes that no N divides
NIGHT = pytest.mark.night
RANKS = [2, 3, pytest.param(1, marks=NIGHT), pytest.param(4, marks=NIGHT)]
SLOW = "100 Mb/s, 10 ms"  # so slow that this machine's own time is small beside it
CASES = [(op, dtype) for op in (Op.SUM, Op.MIN, Op.MAX) for dtype in (torch.float32, torch.bfloat16, torch.int64)]
CASES += [(Op.AVG, torch.float32), (Op.AVG, torch.float64), (Op.PRODUCT, torch.int32)]


def draw(size: int, dtype: torch.dtype, rank: int) -> torch.Tensor:
    """Of very different sizes, so that the order of a sum shows."""
    generator = torch.Generator().manual_seed(100 * size + rank)
    x = torch.randn(size, generator=generator) * torch.randn(size, generator=generator).mul(3).exp()
    return x.to(dtype)


def by_torch(op, x: torch.Tensor) -> torch.Tensor:
    total = x.clone()
    dist.all_reduce(total, Op.SUM if op == Op.AVG else op)
    return total / dist.get_world_size() if op == Op.AVG else total


def error(found: torch.Tensor, expected: torch.Tensor, op, size: int) -> float:
    """Zero if equal to the bit; else in units of the note's bound, infinite where the results must be equal."""
    n = dist.get_world_size()
    if torch.equal(found, expected):
        return 0.0
    if n <= 2 or op in EXACT or not found.is_floating_point():
        return float("inf")
    absolute = sum(draw(size, found.dtype, r).double().abs() for r in range(n))
    absolute, bound = (absolute / n, n) if op == Op.AVG else (absolute, n - 1)
    return ((found.double() - expected.double()).abs() / (bound * torch.finfo(found.dtype).eps * absolute)).max().item()


def results(cases=CASES) -> dict:
    """(function, op, dtype, size): how far from torch's; and what is the same, or not, on all ranks."""
    n, rank, found = dist.get_world_size(), dist.get_rank(), {}
    for op, dtype in cases:
        for size in SIZES:
            x = draw(size, dtype, rank)
            expected = by_torch(op, x)
            for function in (ours.all_reduce, ours.naive_all_reduce):
                mine = x.clone()
                assert function(mine, op) is None
                found[function.__name__, str(op), str(dtype), size] = error(mine, expected, op, size)
        size = 24 * n
        x, shard = draw(size, dtype, rank), torch.empty(24, dtype=dtype)
        before, whole = x.clone(), torch.empty(n, 4, 6, dtype=dtype)
        ours.reduce_scatter_tensor(shard, x, op)
        assert torch.equal(x, before), "the input stays as it was"
        ours.all_gather_into_tensor(whole, shard.view(4, 6))
        found["reduce_scatter", str(op), str(dtype)] = error(whole.view(-1), by_torch(op, x), op, size)
        gathered = torch.empty(size, dtype=dtype)
        dist.all_gather_into_tensor(gathered, shard)
        assert torch.equal(gathered, whole.view(-1))
    return found


@pytest.mark.parametrize("n", RANKS)
def test_results_are_torchs(n):
    """To the bit where the order can't matter; else within the bound of the note."""
    for rank, found in enumerate(launch(results, n, device="cpu")):
        assert {what: e for what, e in found.items() if e > 1} == {}, f"rank {rank}"
        assert len(found) == len(CASES) * (2 * len(SIZES) + 1)
        if n > 2:
            assert max(found.values()) > 0, "the numbers are such that another order shows"


def added_up(chunks: list[torch.Tensor]) -> torch.Tensor:
    total = chunks[0]
    for chunk in chunks[1:]:
        total = total + chunk
    return total


def bits() -> tuple:
    n, rank = dist.get_world_size(), dist.get_rank()
    ring, naive = draw(1001, torch.float32, rank), draw(1001, torch.float32, rank)
    ours.all_reduce(ring)
    ours.naive_all_reduce(naive)
    inputs = [draw(1001, torch.float32, r).tensor_split(n) for r in range(n)]
    in_order = [added_up([inputs[(c + 1 + i) % n][c] for i in range(n)]) for c in range(n)]
    return ring.tolist(), naive.tolist(), torch.equal(ring, torch.cat(in_order))


@pytest.mark.parametrize("n", [2, 3, pytest.param(4, marks=NIGHT)])
def test_all_ranks_end_with_the_same_bits(n):
    """In the order that [Note: the order of a sum] says. The naive version's ranks add in orders of their own."""
    rings, naive, in_order = zip(*launch(bits, n, device="cpu"), strict=True)
    assert all(in_order)
    assert all(ring == rings[0] for ring in rings)
    assert all(result == naive[0] for result in naive) == (n == 2)


def broadcasts() -> list[tuple]:
    """From every source: whether the tensor is the source's, and how many times this rank sent it."""
    n, rank, found = dist.get_world_size(), dist.get_rank(), []
    for source in range(n):
        for how in ({"src": source}, {"group_src": source}):
            x = draw(10, torch.bfloat16, rank).view(2, 5)
            with record_traffic() as traffic:
                ours.broadcast(x, **how)
            right = torch.equal(x.view(-1), draw(10, torch.bfloat16, source))
            found.append((right, (rank - source) % n, traffic.count("send"), traffic.count("recv")))
    return found


@pytest.mark.parametrize("n", [2, 3, 5, pytest.param(1, marks=NIGHT), pytest.param(8, marks=NIGHT)])
def test_broadcast_doubles_the_ranks_that_have_the_tensor(n):
    """log2(N) messages, rounded up, leave the source; N-1 there are in all, and each rank but the source gets one."""
    by_rank = launch(broadcasts, n, device="cpu")
    for calls in zip(*by_rank, strict=True):
        assert all(right for right, *_ in calls)
        sent = {place: sends for _, place, sends, _ in calls}
        assert sent[0] == ours.tree_broadcast_cost(1, n).steps == [0, 0, 1, 2, 2, 3, 3, 3, 3][n]
        assert max(sent.values()) == sent[0] and sum(sent.values()) == n - 1
        assert [recvs for _, place, _, recvs in sorted(calls, key=lambda c: c[1])] == [0] + [1] * (n - 1)


# What is sent


def traffic_of(call) -> tuple:
    """Steps (messages that this rank sends), bytes it sends, bytes it gets."""
    with record_traffic() as traffic:
        call()
    sent = [c.input_bytes for c in traffic.collectives if c.kind == "send"]
    got = [c.output_bytes for c in traffic.collectives if c.kind == "recv"]
    assert len(sent) == len(got) and traffic.count() == 2 * len(sent)
    return len(sent), traffic.wire_bytes(dist.get_world_size()), sum(got)


def sent() -> dict:
    n = dist.get_world_size()
    whole, shard, uneven = torch.ones(24 * n), torch.ones(24), torch.ones(4 * n + 2, dtype=torch.float64)
    return {
        "naive": traffic_of(lambda: ours.naive_all_reduce(whole)),
        "all_reduce": traffic_of(lambda: ours.all_reduce(whole)),
        "reduce_scatter": traffic_of(lambda: ours.reduce_scatter_tensor(shard, whole)),
        "all_gather": traffic_of(lambda: ours.all_gather_into_tensor(whole, shard)),
        "uneven": traffic_of(lambda: ours.all_reduce(uneven)),
        "tiny": traffic_of(lambda: ours.all_reduce(torch.ones(1))),
    }


@pytest.mark.parametrize("n", RANKS)
def test_steps_and_bytes_are_the_formulas(n):
    """Exactly, on every rank. Of uneven chunks a rank sends all but its own, then all but its neighbour's."""
    size = 4 * 24 * n
    costs = {
        "naive": ours.naive_all_reduce_cost(size, n),
        "all_reduce": ours.ring_all_reduce_cost(size, n),
        "reduce_scatter": ours.ring_reduce_scatter_cost(size, n),
        "all_gather": ours.ring_all_gather_cost(size, n),
    }
    chunks = [8 * len(c) for c in torch.ones(4 * n + 2).tensor_split(n)]
    by_rank = launch(sent, n, device="cpu")
    for rank, found in enumerate(by_rank):
        for name, cost in costs.items():
            steps, out, into = found[name]
            assert (steps, out) == (cost.steps, pytest.approx(cost.sent_bytes, abs=1e-6)) and into == out, name
        out = 2 * sum(chunks) - chunks[rank] - chunks[(rank + 1) % n]
        assert found["uneven"][:2] == (2 * (n - 1), out if n > 1 else 0)
    assert sum(found["uneven"][1] for found in by_rank) == 2 * (n - 1) * sum(chunks)
    assert sum(found["tiny"][1] for found in by_rank) == 2 * (n - 1) * 4
    assert all(found["tiny"][0] == 2 * (n - 1) for found in by_rank)


# How long it takes


@pytest.mark.parametrize("n", [1, 2, 4, 7])
def test_seconds_are_the_networks(n):
    """The simulated network counts the messages of each round by itself: two derivations of one formula."""
    network, size = Network(1, n, Link(bandwidth_bytes_per_s=1000.0, latency_s=0.25)), 7000
    costs = {
        "all_reduce": ours.ring_all_reduce_cost,
        "reduce_scatter": ours.ring_reduce_scatter_cost,
        "all_gather": ours.ring_all_gather_cost,
    }
    for kind, cost in costs.items():
        assert cost(size, n).seconds(0.25, 1000.0) == pytest.approx(network.seconds(kind, size, range(n)))


def timed() -> dict[str, tuple]:
    """Seconds on the wall beside the formula's, of collectives that all ranks begin together."""
    n, link = dist.get_world_size(), Link.parse(SLOW)
    whole = torch.ones(60_000)
    shard = torch.ones(60_000 // n)
    calls = {
        "naive": (lambda: ours.naive_all_reduce(whole), ours.naive_all_reduce_cost),
        "all_reduce": (lambda: ours.all_reduce(whole), ours.ring_all_reduce_cost),
        "reduce_scatter": (lambda: ours.reduce_scatter_tensor(shard, whole), ours.ring_reduce_scatter_cost),
        "all_gather": (lambda: ours.all_gather_into_tensor(whole, shard), ours.ring_all_gather_cost),
        "broadcast": (lambda: ours.broadcast(whole, 0), ours.tree_broadcast_cost),
    }
    found = {}
    for name, (call, cost) in calls.items():
        times = [seconds(call) for _ in range(3)]
        found[name] = median(times), cost(whole.nbytes, n).seconds(link.latency_s, link.bandwidth_bytes_per_s)
    return found


def seconds(call) -> float:
    """Until the last rank is through: in a tree some are early."""
    dist.barrier()
    start = time.perf_counter()
    call()
    took = torch.tensor(time.perf_counter() - start)
    dist.all_reduce(took, Op.MAX)
    return took.item()


@pytest.mark.parametrize("n", [3, pytest.param(2, marks=NIGHT)])
def test_times_over_a_link_are_the_formulas(n):
    for name, (took, formula) in launch(timed, n, device="cpu", network=simulated(SLOW))[0].items():
        assert 0.95 < took / formula < 2, f"{name}: {took:.3f} s, not {formula:.3f} s"


# Groups, large tensors, parameters, errors


def corners() -> dict:
    rank, found = dist.get_rank(), {}
    groups = [dist.new_group([0, 2, 3]), dist.new_group([1])]
    group = groups[rank == 1]
    x, y = torch.tensor([float(rank)] * 4), torch.tensor([float(rank)])
    ours.all_reduce(x, group=group)
    ours.broadcast(y, 1 if rank == 1 else 3, group)
    found["groups"] = x.tolist(), y.item()
    large = torch.full((1 << 20,), rank + 1.0)  # 4 MiB: no socket's buffer holds a chunk
    ours.all_reduce(large)
    ours.broadcast(large, 2)
    found["large"] = large.unique().tolist()
    weight = torch.nn.Parameter(torch.full((3, 2), float(rank)))
    ours.broadcast(weight, 3)
    ours.all_reduce(weight, Op.AVG)
    found["parameter"] = weight.unique().tolist(), weight.requires_grad, weight.grad_fn
    found["errors"] = [
        message(lambda: ours.reduce_scatter_tensor(torch.empty(3), torch.ones(13))),
        message(lambda: ours.all_gather_into_tensor(torch.empty(12).half(), torch.ones(3))),
        message(lambda: ours.all_reduce(torch.ones(1), group=groups[rank != 1])),
    ]
    return found


def message(call) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


def test_groups_large_tensors_parameters_and_errors():
    for rank, found in enumerate(launch(corners, 4, device="cpu")):
        assert found["groups"] == (([1.0] * 4, 1.0) if rank == 1 else ([5.0] * 4, 3.0))
        assert found["large"] == [10.0]
        assert found["parameter"] == ([3.0], True, None)
        sizes, dtypes, member = found["errors"]
        assert sizes.startswith(f"rank {rank}: 4 times [3] torch.float32 is not [13] torch.float32: pad")
        assert "4 times [3] torch.float32 is not [12] torch.float16" in dtypes
        assert member == f"rank {rank} is not in this group: only its members may call its collectives"


# The comparison itself: collectives with one mistake each must not pass it


def forgets_to_divide(tensor, op=Op.SUM, group=None):
    all_reduce(tensor, Op.SUM if op == Op.AVG else op, group)


def leaves_out_the_last_step(chunks, group):
    rank, n = ours._place(group)
    for step in range(n - 2):
        ours._step(chunks[rank - step], chunks[rank - step - 1], rank, n, group)


all_reduce = ours.all_reduce


@pytest.mark.parametrize(
    ("name", "twin", "case"),
    [
        ("all_reduce", forgets_to_divide, (Op.AVG, torch.float32)),
        ("_ring_all_gather", leaves_out_the_last_step, (Op.SUM, torch.int64)),
    ],
)
def test_a_mistake_is_caught(name, twin, case):
    def with_mistake():
        setattr(ours, name, twin)
        return results([case])

    try:
        found = launch(with_mistake, 3, device="cpu")
    except LaunchError as failed:
        assert "AssertionError" in str(failed)
    else:
        assert all(max(f.values()) > 1 for f in found)
