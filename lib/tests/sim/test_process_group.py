"""The simulated link: words and formulas; results are gloo's to the bit; time is the formula's; waiting is free."""

import copy
import time
from statistics import median

import pytest
import torch
import torch.distributed as dist
from deadlines import deadline_s
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from training import SINCE_2_12

from shardlab import launch
from shardlab.ddp import DDP
from shardlab.fsdp import fully_shard as ours
from shardlab.model import ModelConfig, Transformer
from shardlab.state import full_state_dict
from shardlab.text_batches import batch
from shardsim import process_group, simulated
from shardsim.link import Link
from shardsim.network import Network

SMALL = ModelConfig(vocab_size=256, dim=64, n_layers=2, n_heads=4, n_kv_heads=2, hidden_dim=96, max_seq_len=64)
SLOW = "100 Mb/s, 5 ms"  # so slow that this machine's own time is small beside it
N = 2


@pytest.mark.parametrize(
    ("words", "bytes_per_s", "latency_s"),
    [
        ("1 Gb/s, 50 us", 125e6, 50e-6),
        ("25GB/s,5us", 25e9, 5e-6),
        (" 0.5 Mb/s , 2.5 ms ", 62_500, 2.5e-3),
        ("10 MB/s, 0 s", 10e6, 0.0),
    ],
)
def test_a_link_in_words(words, bytes_per_s, latency_s):
    link = Link.parse(words)
    assert (link.bandwidth_bytes_per_s, link.latency_s) == pytest.approx((bytes_per_s, latency_s))


@pytest.mark.parametrize("words", ["", "fast", "1 Gb/s", "1 gb/s, 5 us", "-1 Gb/s, 5 us", "1 Gb/s 5 us", "1 Gb/s, 5 h"])
def test_words_that_say_no_link_are_refused_with_an_example(words):
    with pytest.raises(ValueError, match="as in '1 Gb/s, 50 us'"):
        Link.parse(words)


@pytest.mark.parametrize(("bandwidth", "latency_s"), [(0, 1e-6), (-1, 1e-6), (1e9, -1e-6)])
def test_a_link_that_can_not_be_is_refused(bandwidth, latency_s):
    with pytest.raises(ValueError, match="a bandwidth above 0 and a latency of 0 or more"):
        Link(bandwidth, latency_s)


# ------------------------------------------------------------------------------------------------------------ on ranks


def gradients() -> dict[str, list[torch.Tensor]]:
    """Of two steps of torch's DDP, of ours, and of FSDP2 (this rank's shards), on whatever network this rank has."""
    torch.manual_seed(0)
    origin, found = Transformer(SMALL), {}
    buckets = {"bucket_cap_mb": 0.1, "gradient_as_bucket_view": True}
    modules = {
        "torch": DistributedDataParallel(copy.deepcopy(origin), **buckets),
        "ours": DDP(copy.deepcopy(origin), **buckets),
        "fsdp": fully_shard(copy.deepcopy(origin)),
    }
    for name, module in modules.items():
        for step in range(2):
            module.zero_grad()
            module(*batch(0, step, dist.get_rank(), N, global_batch=2 * N, seq_len=16)).backward()
        found[name] = [_local(p.grad).clone() for p in module.parameters()]
    return found


def _local(t: torch.Tensor) -> torch.Tensor:
    return t.to_local() if isinstance(t, DTensor) else t


def all_to_all_of_lists(output: torch.Tensor, mine: torch.Tensor) -> None:
    """Where gloo has it."""
    if SINCE_2_12:
        dist.all_to_all(list(output.chunk(N)), list(mine.chunk(N)))
    else:
        dist.all_to_all_single(output, mine)


def exchange() -> dict[str, torch.Tensor]:
    """One of each collective, and a message."""
    rank = dist.get_rank()
    mine = torch.arange(8.0) + 10 * rank
    found = {name: torch.zeros(8) for name in ("all_to_all", "all_to_all of lists", "message")}
    found |= {"all_reduce": mine.clone(), "broadcast": mine.clone(), "reduce_scatter": torch.zeros(4)}
    found["all_gather"] = torch.zeros(16)
    dist.all_reduce(found["all_reduce"], op=dist.ReduceOp.MAX)
    dist.broadcast(found["broadcast"], 1)
    dist.reduce_scatter(found["reduce_scatter"], list(mine.chunk(2)))
    dist.all_gather(list(found["all_gather"].chunk(2)), mine)
    dist.all_to_all_single(found["all_to_all"], mine)
    all_to_all_of_lists(found["all_to_all of lists"], mine)
    if rank == 0:
        dist.send(mine, 1)
    else:
        dist.recv(found["message"], 0)
    dist.barrier()
    return found


def timed() -> list[tuple[str, int, float, float]]:
    """Kind, bytes, and seconds on the wall beside the formula's, of collectives issued when all ranks are ready."""
    network, found = Network.parse(SLOW, N), []
    large, small = torch.ones(100_000), torch.ones(10)
    calls = {
        "all_reduce": lambda: dist.all_reduce(large),
        "all_gather": lambda: dist.all_gather(list(torch.empty(200_000).chunk(N)), large),
        "broadcast": lambda: dist.broadcast(large, 0),
        "all_to_all": lambda: all_to_all_of_lists(torch.empty(100_000), large),
        "barrier": lambda: dist.barrier(),
    }
    sizes = dict.fromkeys(calls, 400_000) | {"all_gather": 800_000, "barrier": 0}
    for kind, call in calls.items():
        expected, times = network.seconds(kind, sizes[kind], range(N)), []
        for _ in range(5):
            dist.all_reduce(small)
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        found.append((kind, sizes[kind], median(times), expected))
    return found


def queued() -> tuple[list[process_group.Collective], float, float]:
    """Four all_reduces at once share one link. What was sent, and seconds of this process's CPU and on the wall."""
    x = [torch.ones(100_000) for _ in range(4)]
    dist.barrier()
    process_group.clear()
    cpu, wall = time.process_time(), time.perf_counter()
    for work in [dist.all_reduce(t, async_op=True) for t in x]:
        work.wait()
    return process_group.collectives(), time.process_time() - cpu, time.perf_counter() - wall


def on_the_link() -> tuple:
    return gradients(), exchange(), timed(), queued()


@pytest.fixture(scope="module")
def slow_link() -> list[tuple]:
    return launch(on_the_link, N, device="cpu", network=simulated(SLOW))


def plain() -> tuple:
    return gradients(), exchange()


def test_results_are_gloos_to_the_bit(slow_link):
    for slow, real in zip(slow_link, launch(plain, N, device="cpu"), strict=True):
        assert slow[0].keys() == real[0].keys()
        for name in real[0]:
            assert all(map(torch.equal, slow[0][name], real[0][name])), name
        assert slow[1].keys() == real[1].keys()
        for name, tensor in real[1].items():
            assert torch.equal(slow[1][name], tensor), name


def test_our_ddp_and_torchs_agree_on_the_link(slow_link):
    for found, *_ in slow_link:
        assert all(map(torch.equal, found["ours"], found["torch"]))


def test_a_collective_takes_the_time_of_the_formula(slow_link):
    for _, _, times, _ in slow_link:
        for kind, size, seconds, expected in times:
            assert 0.9 < seconds / expected < 1.5, f"{kind} of {size} bytes"


def test_transfers_share_the_link_one_after_the_other_and_are_recorded(slow_link):
    expected = Network.parse(SLOW, N).seconds("all_reduce", 400_000, range(N))
    for *_, (log, _, wall) in slow_link:
        assert [(c.kind, c.bytes, c.world_size, c.source) for c in log] == [("all_reduce", 400_000, N, "simulated")] * 4
        assert all(c.issued_s <= c.started_s < c.finished_s for c in log)
        for before, after in zip(log, log[1:], strict=False):
            assert after.started_s == pytest.approx(before.started_s + expected), "the link is never idle between them"
        assert log[-1].finished_s - log[0].started_s == pytest.approx(4 * expected, rel=0.25)
        assert wall > 3.9 * expected


def test_waiting_costs_no_cpu(slow_link):
    for *_, (_, cpu, wall) in slow_link:
        assert cpu < 0.25 * wall


def whole_weight():
    layer = torch.nn.Linear(2, 2)
    ours(layer)
    return full_state_dict(layer).keys()


def test_states_are_gathered_on_a_simulated_network_too():
    first, *others = launch(whole_weight, 2, device="cpu", network=simulated(SLOW))
    assert list(first) == ["weight", "bias"] and not any(others)


def test_a_group_without_a_network_is_refused():
    with pytest.raises(RuntimeError, match="over which network"):
        process_group.SimulatedProcessGroup(dist.HashStore(), 0, (0,), dist.default_pg_timeout, "0")


def test_a_network_for_other_ranks_is_refused_before_any_is_started():
    for network in ("2x4 nodes, 1 GB/s inside, 100 MB/s between", Network(1, 3, Link(1e9, 0.0))):
        with pytest.raises(ValueError, match="and the job has 4"):
            launch(plain, 4, device="cpu", network=simulated(network))


# ------------------------------------------------------------------------------------------------------------ clusters

# So slow that this machine's own time is small beside it: 0.1 ms at least, times the load.
CLUSTER = "2x2 nodes, 40 MB/s 2 ms inside, 10 MB/s 5 ms between"
SIZE = 100_000  # float32
GROUPS = ((0, 1, 2, 3), (0, 1), (2, 3), (0, 2), (1, 3))


def calls(ranks: tuple[int, ...], group: dist.ProcessGroup) -> dict:
    n, x = len(ranks), torch.ones(SIZE)
    return {
        "all_reduce": lambda: dist.all_reduce(x, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(torch.empty(SIZE), x[: SIZE // n], group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(torch.empty(SIZE // n), x, group=group),
        "broadcast": lambda: dist.broadcast(x, ranks[0], group=group),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty(SIZE), x, group=group),
        "barrier": lambda: dist.barrier(group=group),
    }


def start_to_end() -> dict:
    """{(kind, ranks): seconds from start to end, the best of three} of collectives with the network to themselves."""
    groups = {ranks: dist.new_group(list(ranks)) for ranks in GROUPS}
    found = {}
    for ranks, group in groups.items():
        dist.barrier()
        if dist.get_rank() not in ranks:
            continue
        for kind, call in calls(ranks, group).items():
            process_group.clear()
            for _ in range(3):
                call()
            log = process_group.collectives()
            assert [(c.kind, c.ranks) for c in log] == [(kind, ranks)] * 3
            found[kind, ranks] = min(c.finished_s - c.started_s for c in log)
    dist.barrier()
    return found


BY_NIGHT = (pytest.param(extra, marks=pytest.mark.night) for extra in ("", " a rank", ", rank 3 is 2x slower"))


@pytest.mark.parametrize("extra", [", hierarchical", ", tree", *BY_NIGHT])
def test_a_collective_takes_what_its_group_needs_on_this_topology(extra):
    words = CLUSTER + extra
    network = Network.parse(words, 4)
    for found in launch(start_to_end, 4, device="cpu", network=simulated(words)):
        for (kind, ranks), took_s in found.items():
            expected = network.seconds(kind, 0 if kind == "barrier" else 4 * SIZE, ranks)
            assert took_s > 0.999 * expected, (kind, ranks)
            assert took_s < 1.1 * expected + 5e-3, (kind, ranks)


SLOWER_CLUSTER = "2x2 nodes, 4 MB/s 2 ms inside, 2 MB/s 5 ms between"  # than ranks of a busy machine are late


def two_at_once() -> dict:
    """When the sharding groups' all_gathers and the replicas' all_reduces ran, both pairs issued at once."""
    inside, between = ((0, 1), (2, 3)), ((0, 2), (1, 3))
    groups = {ranks: dist.new_group(list(ranks)) for ranks in inside + between}
    mine = [group for ranks, group in groups.items() if dist.get_rank() in ranks]
    dist.barrier()
    process_group.clear()
    works = [dist.all_reduce(torch.ones(SIZE), group=group, async_op=True) for group in mine]
    for work in works:
        work.wait()
    return {c.ranks: (c.started_s, c.finished_s) for c in process_group.collectives()}


def overlap(a: tuple[float, float], b: tuple[float, float]) -> float:
    """The part of the shorter of two spans that lies within the other."""
    return max(0.0, min(a[1], b[1]) - max(a[0], b[0])) / min(a[1] - a[0], b[1] - b[0])


def test_groups_share_a_card_one_after_the_other_and_nothing_else():
    shared, own = (
        {
            ranks: span
            for found in launch(two_at_once, 4, device="cpu", network=simulated(words))
            for ranks, span in found.items()
        }
        for words in (SLOWER_CLUSTER, SLOWER_CLUSTER + " a rank")
    )
    assert overlap(shared[0, 2], shared[1, 3]) < 0.05, "one card a node"
    assert overlap(own[0, 2], own[1, 3]) > 0.1, "one card a rank"
    for spans in (shared, own):
        assert overlap(spans[0, 1], spans[2, 3]) > 0.1, "each in its node"
    assert overlap(own[0, 1], own[0, 2]) > 0.1, "a port and a card"


def root_first(kind: str) -> tuple[float, float, float]:
    """The last rank comes late, and the root of a broadcast, or who sends in a reduce, has nothing to wait for."""
    dist.barrier()
    process_group.clear()
    x = torch.ones(SIZE)
    if dist.get_rank() == 3:
        time.sleep(0.3)
    dist.broadcast(x, 0) if kind == "broadcast" else dist.reduce(x, 3)
    (c,) = process_group.collectives()
    return c.issued_s, c.started_s, c.finished_s


@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
def test_no_collective_starts_before_its_last_rank(kind):
    found = launch(root_first, 4, kind, device="cpu", network=simulated(CLUSTER))
    issued_s, started_s, _ = found[3]
    assert issued_s - found[0][0] > 0.25
    for _, started, finished in found:
        assert started == started_s >= issued_s
        assert finished - started > 0.999 * Network.parse(CLUSTER, 4).seconds(kind, 4 * SIZE, range(4))


def late() -> tuple[list[process_group.Collective], float]:
    """Rank 2 comes late; then two messages in opposite directions."""
    rank = dist.get_rank()
    dist.barrier()
    process_group.clear()
    if rank == 2:
        time.sleep(0.2)
    dist.all_reduce(torch.ones(SIZE))
    x = torch.ones(SIZE)
    if rank < 2:
        work = dist.isend(x, 1 - rank)
        dist.recv(torch.empty(SIZE), 1 - rank)
        received_s = time.monotonic()
        work.wait()
        return process_group.collectives(), received_s
    return process_group.collectives(), 0.0


def test_the_last_rank_to_arrive_starts_it_and_opposite_messages_pass_each_other():
    network = Network.parse(CLUSTER, 4)
    found = launch(late, 4, device="cpu", network=simulated(CLUSTER))
    logs = [log for log, _ in found]
    reduces = [log[0] for log in logs]
    for c in reduces:
        assert c.started_s == c.ready_s == reduces[2].ready_s
        assert c.started_s - reduces[0].issued_s > 0.19
    sends = [log[1] for log in logs[:2]]
    spans = [(c.started_s, c.finished_s) for c in sends]
    assert [c.kind for c in sends] == ["send", "send"]
    assert overlap(*spans) > 0.1
    for (start, end), (_, received_s) in zip(spans, reversed(found[:2]), strict=True):
        assert end - start > 0.999 * network.seconds("send", 4 * SIZE, (0, 1))
        assert received_s - start > 0.999 * network.seconds("send", 4 * SIZE, (0, 1)), "not before it was delivered"


def jittery() -> list[tuple[float, float]]:
    """Of twelve collectives: the seconds that the network was to take, and those that passed on this rank."""
    times = []
    for _ in range(12):
        process_group.clear()
        work = dist.all_reduce(torch.ones(1000), async_op=True)
        work.wait()
        times += [(work.due_s - c.started_s, c.finished_s - c.started_s) for c in process_group.collectives()]
    return times


def test_jitter_lengthens_by_up_to_so_much_and_equally_on_every_rank():
    words = "1 MB/s, 5 ms"
    base = Network.parse(words, 2).seconds("all_reduce", 4000, range(2))
    of_ranks = launch(jittery, 2, device="cpu", network=simulated(f"{words}, jitter 200%"))
    due = [[due_s for due_s, _ in times] for times in of_ranks]
    assert due[0] == due[1]
    assert base <= min(due[0]) and max(due[0]) <= 3 * base
    assert max(due[0]) > 1.5 * min(due[0])
    late = [passed_s - due_s for times in of_ranks for due_s, passed_s in times]
    assert min(late) >= 0
    assert median(late) < 10e-3  # a busy machine may wake a rank late now and then


# -------------------------------------------------------------------------------------------------------------- hooks


def chained(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """What PowerSGD's hook does: when the first all_reduce is through, it issues another and waits for that."""

    def second(future: torch.futures.Future) -> torch.Tensor:
        n_ranks = torch.ones(1)
        dist.all_reduce(n_ranks, async_op=True).get_future().wait()
        return future.value()[0] / n_ranks

    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(second)


def averaged(hook=None) -> list[torch.Tensor]:
    torch.manual_seed(0)
    module = DistributedDataParallel(Transformer(SMALL))
    if hook:
        module.register_comm_hook(None, hook)
    for step in range(2):
        module.zero_grad()
        module(*batch(0, step, dist.get_rank(), N, global_batch=2 * N, seq_len=16)).backward()
    return [p.grad for p in module.parameters()]


@pytest.mark.parametrize("network", ["1 Gb/s, 2 ms", "infinitely fast"])
def test_a_hook_may_wait_for_the_next_collective(network):
    """One bucket, or the ranks would issue their collectives in different orders. Halving is exact, to the bit."""
    by_rank = launch(averaged, N, chained, device="cpu", network=simulated(network), timeout_s=deadline_s(60))
    for found, real in zip(by_rank, launch(averaged, N, device="cpu"), strict=True):
        assert all(map(torch.equal, found, real))


def groups_that_come_and_go() -> float:
    """A second network replaces the first for the groups made after it."""
    times = []
    for words in ("10 MB/s, 1 ms", "1 MB/s, 1 ms"):
        process_group.use_network(Network.parse(words, N))
        group = dist.new_group(backend="simulated")
        process_group.clear()
        dist.all_reduce(torch.ones(25_000), group=group)
        (c,) = process_group.collectives()
        times.append(c.finished_s - c.started_s)
        dist.destroy_process_group(group)
    return times[1] / times[0]


def test_a_plain_job_can_have_simulated_groups_one_network_after_the_other():
    assert all(3 < ratio < 17 for ratio in launch(groups_that_come_and_go, N, device="cpu"))
