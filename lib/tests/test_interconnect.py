"""The simulated link: words and formulas; results are gloo's to the bit; time is the formula's; waiting is free."""

import copy
import time
from statistics import median

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from shardlab import launch
from shardlab.data import batch
from shardlab.model import ModelConfig, Transformer
from shardlab.parallel.ddp import DDP
from shardlab.simulate import interconnect
from shardlab.simulate.link import Link

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


@pytest.mark.parametrize("n", [1, 2, 4, 7])
def test_formulas(n):
    """Thakur, Rabenseifner & Gropp 2005: steps of the ring times latency, and bytes a rank sends over bandwidth."""
    link, size = Link(bandwidth_bytes_per_s=1000.0, latency_s=0.25), 7000
    gather = (n - 1) * 0.25 + (n - 1) / n * 7
    assert link.all_gather_s(size, n) == link.reduce_scatter_s(size, n) == pytest.approx(gather)
    assert link.all_to_all_s(size, n) == pytest.approx(gather)
    assert link.all_reduce_s(size, n) == pytest.approx(2 * gather)
    assert link.barrier_s(0, n) == pytest.approx(2 * (n - 1) * 0.25)
    assert link.broadcast_s(size, n) == link.reduce_s(size, n) == pytest.approx((n - 1) * 0.25 + (n > 1) * 7)
    assert link.send_s(size, 2) == pytest.approx(0.25 + 7)


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


def exchange() -> dict[str, torch.Tensor]:
    """One of each collective, and a message."""
    rank = dist.get_rank()
    mine = torch.arange(8.0) + 10 * rank
    found = {name: torch.zeros(8) for name in ("all_to_all", "message")}
    found |= {"all_reduce": mine.clone(), "broadcast": mine.clone(), "reduce_scatter": torch.zeros(4)}
    found["all_gather"] = torch.zeros(16)
    dist.all_reduce(found["all_reduce"], op=dist.ReduceOp.MAX)
    dist.broadcast(found["broadcast"], 1)
    dist.reduce_scatter(found["reduce_scatter"], list(mine.chunk(2)))
    dist.all_gather(list(found["all_gather"].chunk(2)), mine)
    dist.all_to_all_single(found["all_to_all"], mine)
    if rank == 0:
        dist.send(mine, 1)
    else:
        dist.recv(found["message"], 0)
    dist.barrier()
    return found


def timed() -> list[tuple[str, int, float, float]]:
    """Kind, bytes, and seconds on the wall beside the formula's, of collectives issued when all ranks are ready."""
    link, found = Link.parse(SLOW), []
    large, small = torch.ones(100_000), torch.ones(10)
    calls = {
        "all_reduce": lambda: dist.all_reduce(large),
        "all_gather": lambda: dist.all_gather(list(torch.empty(200_000).chunk(N)), large),
        "broadcast": lambda: dist.broadcast(large, 0),
        "barrier": lambda: dist.barrier(),
    }
    sizes = {"all_reduce": 400_000, "all_gather": 800_000, "broadcast": 400_000, "barrier": 0}
    for kind, call in calls.items():
        expected, times = getattr(link, f"{kind}_s")(sizes[kind], N), []
        for _ in range(5):
            dist.all_reduce(small)
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        found.append((kind, sizes[kind], median(times), expected))
    return found


def queued() -> tuple[list[interconnect.Collective], float, float]:
    """Four all_reduces at once share one link. What was sent, and seconds of this process's CPU and on the wall."""
    x = [torch.ones(100_000) for _ in range(4)]
    dist.barrier()
    interconnect.clear()
    cpu, wall = time.process_time(), time.perf_counter()
    for work in [dist.all_reduce(t, async_op=True) for t in x]:
        work.wait()
    return interconnect.collectives(), time.process_time() - cpu, time.perf_counter() - wall


def on_the_link() -> tuple:
    return gradients(), exchange(), timed(), queued()


@pytest.fixture(scope="module")
def slow_link() -> list[tuple]:
    return launch(on_the_link, N, device="cpu", network=SLOW)


def plain() -> tuple:
    return gradients(), exchange()


def test_results_are_gloos_to_the_bit(slow_link):
    for simulated, real in zip(slow_link, launch(plain, N, device="cpu"), strict=True):
        assert simulated[0].keys() == real[0].keys()
        for name in real[0]:
            assert all(map(torch.equal, simulated[0][name], real[0][name])), name
        assert simulated[1].keys() == real[1].keys()
        for name, tensor in real[1].items():
            assert torch.equal(simulated[1][name], tensor), name


def test_our_ddp_and_torchs_agree_on_the_link(slow_link):
    for found, *_ in slow_link:
        assert all(map(torch.equal, found["ours"], found["torch"]))


def test_a_collective_takes_the_time_of_the_formula(slow_link):
    for _, _, times, _ in slow_link:
        for kind, size, seconds, expected in times:
            assert 0.9 < seconds / expected < 1.5, f"{kind} of {size} bytes"


def test_transfers_share_the_link_one_after_the_other_and_are_recorded(slow_link):
    expected = Link.parse(SLOW).all_reduce_s(400_000, N)
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


def test_a_group_without_a_link_is_refused():
    with pytest.raises(RuntimeError, match="over which link"):
        interconnect.SimulatedProcessGroup(dist.HashStore(), 0, 1, dist.default_pg_timeout)
