"""Streams on a CPU: their order without a network; then torch's own engines on ranks, which overlap by them.

[Note: margins] Of each engine the fastest step counts, since other processes only add. A block's messages take about
as long as its computation, so that what is hidden or not changes a step by 15 % and more; asserted is half of that, or
less.
"""

import time
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from shardlab import fsdp, launch
from shardsim import cpu_streams, simulated, slept_computation, transfers
from shardsim.cpu_streams import Event, Moment, Stream
from shardsim.network import Network

BLOCKS, DIM = 5, 160
NETWORK = "50 Mb/s, 200 us"  # a block's 103 kB take 13 ms
FORWARD_S = 0.01


# -------------------------------------------------------------------------------------------------------------- alone


class Transfer:
    """What streams ask of one: data at once, through after `seconds`. Waiting for it is noted down."""

    def __init__(self, seconds: float = 60.0) -> None:
        self.due_s = time.monotonic() + seconds
        self.waited = self.had_data = False
        self.error: Exception | None = None

    def wait(self) -> None:
        self.waited = True
        if self.error:
            raise self.error

    def wait_for_data(self) -> None:
        self.had_data = True

    def is_completed(self) -> bool:
        return time.monotonic() >= self.due_s

    def moment(self) -> Moment:
        return Moment(transfers=frozenset({self}))


def test_a_side_stream_waits_and_the_host_goes_on():
    side, transfer = Stream(), Transfer()
    side.wait_for(transfer.moment())
    assert not transfer.waited and not transfer.had_data
    assert not side.query()


@pytest.mark.parametrize("wait", ["wait_event", "wait_stream", "event.wait", "event.synchronize", "stream.synchronize"])
def test_the_compute_stream_blocks(wait):
    side, transfer = Stream(), Transfer()
    side.wait_for(transfer.moment())
    event, compute = side.record_event(), cpu_streams.current_stream()
    {
        "wait_event": lambda: compute.wait_event(event),
        "wait_stream": lambda: compute.wait_stream(side),
        "event.wait": lambda: event.wait(),
        "event.synchronize": lambda: event.synchronize(),
        "stream.synchronize": lambda: side.synchronize(),
    }[wait]()
    assert transfer.waited


def test_synchronize_blocks_for_all_streams():
    transfers, sides = [Transfer(), Transfer()], [Stream(), Stream()]
    for side, transfer in zip(sides, transfers, strict=True):
        side.wait_for(transfer.moment())
    cpu_streams.synchronize()
    assert all(t.waited for t in transfers)


def test_an_event_is_the_moment_when_it_was_recorded():
    side, early, late = Stream(), Transfer(), Transfer()
    side.wait_for(early.moment())
    event = side.record_event()
    side.wait_for(late.moment())
    event.synchronize()
    assert early.waited and not late.waited


def test_who_waits_for_a_later_transfer_has_waited_for_the_earlier():
    side, early, late = Stream(), Transfer(120), Transfer(60)
    side.wait_for(early.moment())
    side.wait_for(late.moment())
    side.record_event().synchronize()
    assert early.waited and late.waited


def test_a_transfer_that_failed_is_not_forgotten():
    side, failed = Stream(), Transfer(seconds=0)
    failed.error = RuntimeError("a rank is gone")
    side.wait_for(failed.moment())
    side.wait_for(Transfer().moment())
    with pytest.raises(RuntimeError, match="a rank is gone"):
        cpu_streams.current_stream().wait_event(side.record_event())
    failed.error = None  # or its traceback keeps the stream alive, on which other tests would wait


def test_orders_pass_on_from_stream_to_stream():
    reduce_scatter, all_reduce, transfer = Stream(), Stream(), Transfer(60)
    reduce_scatter.wait_for(transfer.moment())
    all_reduce.wait_stream(reduce_scatter)
    with cpu_streams.stream(all_reduce):
        assert cpu_streams.reached_s() == transfer.due_s and transfer.had_data
    assert cpu_streams.reached_s() < transfer.due_s, "the host is not held up"


def test_an_event_that_nobody_recorded_is_past():
    assert Event().query()
    Event().synchronize()


def test_the_current_stream_is_the_innermost_even_after_an_exception():
    outer, inner, compute = Stream(), Stream(), cpu_streams.current_stream()
    with cpu_streams.stream(outer):
        with pytest.raises(KeyError), cpu_streams.stream(inner):
            assert cpu_streams.current_stream() is inner
            raise KeyError
        with cpu_streams.stream(None):
            assert cpu_streams.current_stream() is outer
    assert cpu_streams.current_stream() is compute


@pytest.mark.parametrize(
    ("operation", "reads"),
    [("div_", True), ("clone", True), ("item", True), ("view", False), ("narrow", False), ("detach", False)],
)
def test_an_operation_on_a_side_stream_waits_for_data_that_it_reads(operation, reads):
    side, transfer, x = Stream(), Transfer(), torch.ones(1)
    arguments = {"div_": (2,), "view": (-1,), "narrow": (0, 0, 1)}.get(operation, ())
    with cpu_streams.stream(side):
        side.wait_for(transfer.moment())
        getattr(x, operation)(*arguments)
    assert transfer.had_data == reads
    assert not transfer.waited


def test_memory_is_not_taken_from_under_a_transfer():
    side, transfer = Stream(), Transfer()
    side.wait_for(transfer.moment())
    x = torch.ones(4)
    cpu_streams.install()
    try:
        x.untyped_storage().resize_(0)
    finally:
        cpu_streams.uninstall()
    assert transfer.had_data
    assert x.untyped_storage().nbytes() == 0


def test_nothing_of_torch_is_changed_before_the_first_and_after_the_last_user():
    names = ["Stream", "Event", "stream", "current_stream", "synchronize", "StreamContext"]
    before = [getattr(torch.cpu, name) for name in names], torch.UntypedStorage.resize_
    cpu_streams.install()
    cpu_streams.install()
    cpu_streams.uninstall()
    assert torch.cpu.Stream is Stream
    cpu_streams.uninstall()
    assert ([getattr(torch.cpu, name) for name in names], torch.UntypedStorage.resize_) == before


def test_running_ahead_queues_on_the_compute_stream():
    transfer = Transfer(60)
    with cpu_streams.run_ahead():
        slept_computation.compute(30.0)
        start_s = cpu_streams.reached_s()
        cpu_streams.current_stream().wait_for(transfer.moment())
        assert transfer.had_data and not transfer.waited
        assert cpu_streams.reached_s() == transfer.due_s > start_s > time.monotonic() + 29
        cpu_streams.current_stream().moment = Moment()  # or leaving would take a minute


def test_after_an_exception_the_host_is_the_compute_stream_again():
    with pytest.raises(KeyError), cpu_streams.run_ahead():
        slept_computation.compute(30.0)
        raise KeyError
    assert cpu_streams.current_stream().blocks
    assert cpu_streams.reached_s() <= time.monotonic()


# ------------------------------------------------------------------------------------------------------------ on ranks


def blocks(forward_s: float = FORWARD_S) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh()) for _ in range(BLOCKS)))
    for i, block in enumerate(model if forward_s else ()):
        slept_computation.sleep_in(block, forward_s, name=str(i))
    return model


def fsdp2(model: nn.Module, wrap=fully_shard, prefetch: int = 0, **options) -> nn.Module:
    """`prefetch` blocks ahead in forward."""
    for block in model:
        wrap(block, **options)
    wrap(model, **options)
    for i, block in enumerate(model):
        block.set_modules_to_forward_prefetch(list(model)[i + 1 : i + 1 + prefetch])
    return model


def without_backward_prefetch(model: nn.Module) -> nn.Module:
    for block in model:
        block._get_fsdp_state()._fsdp_param_group._backward_prefetch = lambda: None
    return model


def fsdp1(model: nn.Module, **options) -> FullyShardedDataParallel:
    def is_block(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
        return recurse or len(list(module.children())) == 2

    return FullyShardedDataParallel(model, auto_wrap_policy=is_block, device_id=torch.device("cpu"), **options)


ENGINES = {
    "no prefetch": lambda **k: without_backward_prefetch(fsdp2(blocks(**k))),
    "backward": lambda **k: fsdp2(blocks(**k)),
    "forward 1": lambda **k: fsdp2(blocks(**k), prefetch=1),
    "forward 2": lambda **k: fsdp2(blocks(**k), prefetch=2),
    "no reshard": lambda **k: fsdp2(blocks(**k), reshard_after_forward=False),
    "ours": lambda **k: fsdp2(blocks(**k), fsdp.fully_shard),
    "HSDP": lambda **k: fsdp2(blocks(**k), prefetch=1, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("r", "s"))),
    "FSDP1 no prefetch": lambda **k: fsdp1(blocks(**k), backward_prefetch=None),
    "FSDP1 post": lambda **k: fsdp1(blocks(**k), backward_prefetch=BackwardPrefetch.BACKWARD_POST),
    "FSDP1 pre": lambda **k: fsdp1(blocks(**k), backward_prefetch=BackwardPrefetch.BACKWARD_PRE),
    "FSDP1 forward": lambda **k: fsdp1(blocks(**k), forward_prefetch=True),
    "bf16": lambda **k: fsdp2(blocks(**k), mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32)),
    "FSDP1 bf16": lambda **k: fsdp1(blocks(**k), mixed_precision=MixedPrecision(torch.bfloat16, torch.float32)),
    "FSDP1 hybrid": lambda **k: fsdp1(
        blocks(**k),
        sharding_strategy=ShardingStrategy.HYBRID_SHARD,
        device_mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("r", "s")),
    ),
}


class Run:
    """A model in training: its losses, the seconds of its steps, and what the last of them sent and computed."""

    def __init__(self, model: nn.Module, runs_ahead: bool = False) -> None:
        self.model, self.runs_ahead = model, runs_ahead
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        self.losses, self.seconds, self.sent, self.computed = [], [], [], []

    def step(self) -> None:
        torch.manual_seed(100 * len(self.losses) + dist.get_rank())
        x = torch.randn(4, DIM)
        dist.barrier()
        transfers.clear()
        slept_computation.clear()
        start = time.perf_counter()
        with cpu_streams.run_ahead() if self.runs_ahead else nullcontext():
            loss = self.model(x).square().mean()
            loss.backward()
        self.seconds.append(time.perf_counter() - start)
        self.sent, self.computed = transfers.collectives(), slept_computation.computations()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item())

    def found(self) -> dict:
        weights = [p.to_local() if isinstance(p, DTensor) else p for p in self.model.parameters()]
        results = [self.losses, *(w.detach() for w in weights)]
        return {"s": min(self.seconds[1:]), "results": results, "sent": self.sent, "computed": self.computed}


def engines(**options) -> dict[str, dict]:
    """They take turns, so that whatever else this machine does disturbs all of them."""
    runs = {name: Run(make(**options)) for name, make in ENGINES.items()}
    runs["runs ahead"] = Run(ENGINES["backward"](**options), runs_ahead=True)
    for _ in range(4):
        for run in runs.values():
            run.step()
    return {name: run.found() for name, run in runs.items()}


def on_the_network() -> dict:
    found = engines()
    with cpu_streams.run_ahead():
        found["lead"] = {limited: lead(limit_all_gathers=limited) for limited in (True, False)}
    dist.destroy_process_group()
    found["left behind"] = torch.cpu.Stream.__module__, torch.UntypedStorage.__dict__.get("resize_")
    return found


def lead(**options) -> float:
    """Seconds until the host is through forward, for which a GPU would take BLOCKS x 40 ms."""
    model = fsdp1(blocks(0.04), **options)
    for _ in range(2):
        dist.barrier()
        torch.cpu.synchronize()
        start = time.perf_counter()
        model(torch.randn(4, DIM))
        seconds = time.perf_counter() - start
    return seconds


def awake() -> dict:
    return engines(forward_s=0)


def without_streams() -> dict:
    cpu_streams.uninstall()
    cpu_streams.install = cpu_streams.uninstall = lambda: None  # meshes make further groups
    found = awake()
    assert torch.cpu.Stream.__module__ == "torch.cpu"
    return found


@pytest.fixture(scope="module")
def ranks() -> list[dict]:
    return launch(on_the_network, 4, device="cpu", network=simulated(NETWORK))


@pytest.fixture(scope="module")
def first(ranks) -> dict:
    return ranks[0]


def equal(a: dict, b: dict) -> bool:
    (losses, *weights), (other_losses, *others) = a["results"], b["results"]
    return losses == other_losses and all(map(torch.equal, weights, others))


@pytest.mark.night
def test_results_are_gloos_to_the_bit(ranks):
    plain = launch(awake, 4, device="cpu")
    for found, expected in zip(ranks, plain, strict=True):
        assert all(equal(found[name], expected[name]) for name in expected)


@pytest.mark.night
def test_results_are_the_same_without_streams(ranks):
    for found, off in zip(
        ranks, launch(without_streams, 4, device="cpu", network=simulated("infinitely fast")), strict=True
    ):
        assert all(equal(found[name], off[name]) for name in off)


@pytest.mark.alone
@pytest.mark.parametrize(
    ("slower", "faster", "at_least"),
    [
        ("no prefetch", "backward", 1.1),
        ("backward", "forward 1", 1.05),
        ("no prefetch", "forward 2", 1.2),
        ("no prefetch", "no reshard", 1.15),
        ("FSDP1 no prefetch", "FSDP1 post", 1.05),
        ("FSDP1 no prefetch", "FSDP1 pre", 1.1),
        ("FSDP1 no prefetch", "FSDP1 forward", 1.2),
        ("backward", "runs ahead", 1.1),
    ],
)
def test_what_is_prefetched_is_hidden(first, slower, faster, at_least):
    assert first[slower]["s"] > at_least * first[faster]["s"]


@pytest.mark.alone
def test_our_own_fsdp_overlaps_no_less_than_torchs(first):
    assert first["ours"]["s"] < 1.1 * first["backward"]["s"]


def sent(found: dict, kind: str) -> list[transfers.Collective]:
    return [c for c in found["sent"] if c.kind == kind]


def computed(found: dict, kind: str) -> list[slept_computation.Computation]:
    return [c for c in found["computed"] if c.kind == kind]


def due_s(c: transfers.Collective) -> float:
    """A transfer notes a little late that it is through."""
    return c.started_s + Network.parse(NETWORK, 4).seconds(c.kind, c.bytes, c.ranks)


@pytest.mark.night
def test_a_block_computes_when_its_parameters_have_arrived(ranks):
    for found in ranks:
        for name in [*ENGINES, "runs ahead"]:
            gathers, blocks = sent(found[name], "all_gather"), found[name]["computed"]
            assert len(blocks) == 2 * BLOCKS
            for gather, block in zip(gathers, blocks, strict=False):  # some keep parameters: no gathers in backward
                assert due_s(gather) <= block.started_s + 1e-6, name
                assert gather.finished_s <= block.started_s or name == "runs ahead", name


@pytest.mark.night
def test_a_step_sends_what_it_should_and_waits_for_all_of_it(first):
    """Read when backward returned: a transfer that is not through is not there."""
    for name in [*ENGINES, "runs ahead"]:
        assert len(sent(first[name], "all_gather")) == (1 if name == "no reshard" else 2) * BLOCKS, name
        assert len(sent(first[name], "reduce_scatter")) == BLOCKS, name
        assert len(sent(first[name], "all_reduce")) == (BLOCKS if "H" in name or "hybrid" in name else 0), name


@pytest.mark.night
@pytest.mark.parametrize(
    ("name", "early"),
    [
        ("backward", 0),
        ("FSDP1 pre", 0),
        ("forward 1", 1),
        ("forward 2", 2),
        ("FSDP1 forward", 1),
        pytest.param("runs ahead", 1, marks=pytest.mark.alone),  # by time alone: the host has 10 ms to be ahead
    ],
)
def test_parameters_are_on_their_way_while_earlier_blocks_compute(first, name, early):
    """In forward, `early` blocks before: the block's own computation, or none of an earlier one."""
    gathers, blocks = sent(first[name], "all_gather")[:BLOCKS], computed(first[name], "forward")
    for i in range(max(1, early), BLOCKS):
        assert (gathers[i].issued_s < blocks[i - max(1, early)].finished_s) == (early > 0)


def overlap_s(a, b) -> float:
    return max(0.0, min(a.finished_s, b.finished_s) - max(a.started_s, b.started_s))


@pytest.mark.night
@pytest.mark.parametrize("name", ["HSDP", "FSDP1 hybrid"])
def test_an_all_reduce_follows_its_reduce_scatter_and_is_hidden(first, name):
    all_reduces = sent(first[name], "all_reduce")
    for before, after in zip(sent(first[name], "reduce_scatter"), all_reduces, strict=True):
        assert after.issued_s < after.ready_s
        assert after.started_s >= due_s(before) - 1e-6
    hidden = sum(overlap_s(c, block) for c in all_reduces for block in computed(first[name], "backward"))
    assert hidden > 0.1 * sum(c.finished_s - c.started_s for c in all_reduces)


@pytest.mark.alone
def test_the_rate_limiter_holds_back_a_host_that_runs_ahead(first):
    assert first["lead"][True] > 1.5 * first["lead"][False]


@pytest.mark.night
def test_with_the_group_the_streams_are_gone(ranks):
    for found in ranks:
        assert found["left behind"] == ("torch.cpu", None)
