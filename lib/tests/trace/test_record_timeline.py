"""Recorded timelines on ranks: each engine's collectives and the units they served, and what computation hid."""

import time
from statistics import median

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from shardlab import fsdp as ours
from shardlab import launch
from shardlab.ddp import DDP
from shardlab.model import ModelConfig, Transformer
from shardlab.recompute import checkpoint_wrapper as our_checkpoint_wrapper
from shardlab.text_batches import batch
from shardsim import process_group, simulated, slept_computation
from shardsim.cpu_streams import run_ahead
from shardsim.slept_computation import sleep_in
from shardtrace.record_timeline import record_timeline
from shardtrace.timeline import Span, Timeline, union, without

SMALL = ModelConfig(vocab_size=256, dim=64, n_layers=3, n_heads=4, n_kv_heads=2, hidden_dim=96, max_seq_len=64)
BLOCKS = [f"blocks.{i}" for i in range(SMALL.n_layers)]
NETWORK = "100 Mb/s, 1 ms"
N, SLEEP_S = 2, 0.02


def model(straggler: int | None = None) -> Transformer:
    torch.manual_seed(0)
    found = Transformer(SMALL)
    for i, block in enumerate(found.blocks):
        sleep_in(block, SLEEP_S, times=3.0 if straggler == dist.get_rank() else 1.0, name=f"blocks.{i}")
    return found


def fsdp2(wrap=fully_shard, **options):
    found = model()
    for part in (*found.blocks, found):
        wrap(part, **options)
    return found


def fsdp1(strategy=ShardingStrategy.FULL_SHARD):
    policy = ModuleWrapPolicy({type(model().blocks[0])})
    return FullyShardedDataParallel(
        model(), sharding_strategy=strategy, auto_wrap_policy=policy, device_id=torch.device("cpu")
    )


def hsdp():
    return fsdp2(mesh=init_device_mesh("cpu", (1, N), mesh_dim_names=("replicate", "shard")))


def checkpointed(wrap):
    """Sharded outside, recomputed inside."""
    found = model()
    for i, block in enumerate(found.blocks):
        found.blocks[i] = wrap(block)
    for part in (*found.blocks, found):
        fully_shard(part)
    return found


ENGINES = {
    "alone": model,
    "ddp": lambda: DistributedDataParallel(model(), bucket_cap_mb=0.1),
    "our ddp": lambda: DDP(model(), bucket_cap_mb=0.1),
    "fsdp1": fsdp1,
    "no_shard": lambda: fsdp1(ShardingStrategy.NO_SHARD),
    "fsdp2": fsdp2,
    "our fsdp": lambda: fsdp2(ours.fully_shard),
    "hsdp": hsdp,
}


def stepper(module):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def step(number: int = 1) -> None:
        module(*batch(0, number, dist.get_rank(), N, global_batch=2 * N, seq_len=16)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def recorded() -> dict[str, tuple]:
    """Of each engine, after a first step that sets it up: the timeline of one, when it ran, and what was simulated."""
    found = {}
    for name, engine in ENGINES.items():
        module = engine()
        step = stepper(module)
        step()
        dist.barrier()
        process_group.clear()
        slept_computation.clear()
        start_s = time.monotonic()
        with record_timeline(module) as recording:
            step()
        log, slept = process_group.collectives(), slept_computation.computations()
        found[name] = recording.timeline, start_s, time.monotonic(), log, slept
    return found


def slower_rank() -> Timeline:
    module = DistributedDataParallel(model(straggler=1), bucket_cap_mb=100)
    step = stepper(module)
    step()
    with record_timeline(module) as recording:
        step()
    return recording.timeline


def ahead() -> tuple[Timeline, list[slept_computation.Computation]]:
    module = fsdp2()
    step = stepper(module)
    step()
    slept_computation.clear()
    with record_timeline(module) as recording, run_ahead():
        step()
    return recording.timeline, slept_computation.computations()


def left_behind() -> list:
    """What a recording patches, before and after one that fails."""

    def patched():
        work = [vars(c).get("wait") for c in (dist.Work, *dist.Work.__subclasses__())]
        return [record_function.__enter__, record_function.__exit__, *work]

    before, module = patched(), model()
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in module.modules()]
    try:
        with record_timeline(module) as recording:
            raise ValueError("broken off")
    except ValueError:
        pass
    after = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in module.modules()]
    return [before == patched(), hooks == after, recording.timeline.spans]


def on_the_network() -> tuple:
    return recorded(), slower_rank(), ahead(), left_behind()


@pytest.fixture(scope="module")
def by_rank() -> list[tuple]:
    return launch(on_the_network, N, device="cpu", network=simulated(NETWORK))


def of(by_rank: list[tuple], engine: str) -> list[Timeline]:
    return [found[engine][0] for found, *_ in by_rank]


def served(t: Timeline, kind: str) -> list[str]:
    return sorted(s.unit for s in t.lane("link") if s.name == kind)


# ------------------------------------------------------------------------------------------------- what was recorded


@pytest.mark.parametrize("engine", ENGINES)
def test_the_links_carry_what_the_network_says(by_rank, engine):
    for rank, (found, *_) in enumerate(by_rank):
        t, start_s, end_s, log, _ = found[engine]
        assert t.rank == rank
        carried = [(s.name, s.bytes, s.issued_s, s.ready_s, s.start_s, s.end_s) for s in t.lane("link")]
        assert sorted(carried) == sorted(
            (c.kind, c.bytes, c.issued_s, c.ready_s, c.started_s, c.finished_s) for c in log
        )
        assert all(start_s <= s.start_s < s.end_s <= end_s for s in t.lane("compute")), "on the clock of the rank"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_blocks_computation_is_in_its_spans(by_rank, engine):
    """When which block sleeps, the simulation has written down too."""
    for found, *_ in by_rank:
        t, *_, slept = found[engine]
        assert len(slept) == 2 * len(BLOCKS)
        for c in slept:
            inside = [s for s in computed(t, c.kind, c.name) if overlap(s, c) > 0]
            assert sum(overlap(s, c) for s in inside) == pytest.approx(c.finished_s - c.started_s, abs=1e-3)
        assert [s.name for s in t.lane("compute")][-1] == "optimizer"


def computed(t: Timeline, name: str, unit: str) -> list[Span]:
    return [s for s in t.lane("compute") if (s.name, s.unit) == (name, unit)]


def overlap(s: Span, c: slept_computation.Computation) -> float:
    return min(s.end_s, c.finished_s) - max(s.start_s, c.started_s)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_host_does_one_thing_at_a_time_and_most_of_a_step_is_known(by_rank, engine):
    for t in of(by_rank, engine):
        host = sorted((s.start_s, s.end_s) for s in t.spans if s.lane != "link")
        assert all(a[1] <= b[0] for a, b in zip(host, host[1:], strict=False))
        assert t.compute_s + t.wait_s > 0.95 * t.duration_s


@pytest.mark.parametrize("engine", ["fsdp1", "fsdp2", "our fsdp", "hsdp"])
def test_fsdps_collectives_serve_their_units(by_rank, engine):
    """Every block is gathered for forward and for backward, the root, kept in between, once; and reduced once."""
    for t in of(by_rank, engine):
        assert served(t, "all_gather") == sorted([*BLOCKS, *BLOCKS, "root"])
        assert served(t, "reduce_scatter") == sorted([*BLOCKS, "root"])


@pytest.mark.parametrize("engine", ["ddp", "our ddp"])
def test_ddps_buckets_are_numbered(by_rank, engine):
    for t in of(by_rank, engine):
        assert served(t, "all_reduce") == ["bucket 0", "bucket 1", "bucket 2", "bucket 3"]


def test_without_sharding_fsdp1_reduces_its_units(by_rank):
    for t in of(by_rank, "no_shard"):
        assert served(t, "all_reduce") == sorted([*BLOCKS, "root"])


@pytest.mark.parametrize("engine", ["ddp", "our ddp", "fsdp1", "fsdp2", "our fsdp", "hsdp"])
def test_exposed_communication_is_waited_for(by_rank, engine):
    """The one is measured on the links and the other on the host: while a collective is exposed, the host waits."""
    for t in of(by_rank, engine):
        exposed = without(moments(t, "link"), moments(t, "compute"))
        unexplained = sum(end - start for start, end in without(exposed, moments(t, "wait")))
        assert t.exposed_s > 4e-3
        assert unexplained < 0.1 * t.exposed_s


def moments(t: Timeline, lane: str) -> list[tuple[float, float]]:
    return union((s.start_s, s.end_s) for s in t.lane(lane))


def test_backward_hides_what_it_can(by_rank):
    """DDP's first bucket goes out while two blocks have still to compute; FSDP2 gathers a block while one computes."""
    for t in of(by_rank, "ddp"):
        (first,) = [s for s in t.lane("link") if s.unit == "bucket 0"]
        assert t.within(first.start_s, first.end_s).exposed_s < 0.1 * first.duration_s
    for t in of(by_rank, "fsdp2"):
        _, gather = [s for s in t.lane("link") if (s.name, s.unit) == ("all_gather", "blocks.1")]
        around = t.within(gather.start_s, gather.end_s)
        assert around.exposed_s < 0.5 * gather.duration_s
        assert computed(around, "backward", "blocks.2")


def test_a_slower_rank_is_waited_for(by_rank):
    """Rank 1 computes for three times as long: rank 0 waits for the difference before its one bucket starts."""
    waited = [sum(s.duration_s for s in t.lane("wait") if s.name == "slower rank") for _, t, *_ in by_rank]
    assert waited[0] > 0.7 * 2 * (3 - 1) * SLEEP_S * SMALL.n_layers
    assert waited[1] < 0.2 * waited[0]


def test_where_the_host_runs_ahead_the_compute_lane_is_the_devices(by_rank):
    for _, _, (t, slept), _ in by_rank:
        computed = [s for s in t.lane("compute") if s.duration_s > 1e-3]
        expected = [c for c in slept if c.finished_s - c.started_s > 1e-3]
        assert [(s.name, s.unit) for s in computed] == [(c.kind, c.name) for c in expected]
        # To a tenth of a block: on a busy machine the two are noted some microseconds apart.
        assert [s.start_s for s in computed] == pytest.approx([c.started_s for c in expected], abs=0.1 * SLEEP_S)
        assert not t.lane("wait")
        assert served(t, "all_gather") == sorted([*BLOCKS, *BLOCKS, "root"])


def test_nothing_stays_behind_not_even_after_an_error(by_rank):
    for *_, (unpatched, unhooked, spans) in by_rank:
        assert unpatched
        assert unhooked
        assert spans == ()


# ------------------------------------------------------------------------------------------------------- recomputation


def recomputed() -> list[Timeline]:
    found = []
    for wrap in (checkpoint_wrapper, our_checkpoint_wrapper):
        module = checkpointed(wrap)
        step = stepper(module)
        step()
        with record_timeline(module) as recording:
            step()
        found.append(recording.timeline)
    return found


def test_recomputation_is_named():
    """A block's forward runs twice: once as such, and once more before its backward."""
    for timelines in launch(recomputed, N, device="cpu", network=simulated(NETWORK)):
        for t in timelines:
            slept_again = sum(s.duration_s for s in t.lane("compute") if s.name == "recompute")
            assert slept_again > 0.8 * SLEEP_S * len(BLOCKS)
            for block in BLOCKS:
                first = {name: min(s.start_s for s in computed(t, name, block)) for name in ("forward", "recompute")}
                assert first["forward"] < first["recompute"]
                assert len(computed(t, "backward", block)) >= 1
            assert served(t, "all_gather") == sorted([*BLOCKS, *BLOCKS, "root"])


# ------------------------------------------------------------------------------------------------------------ its cost


def cost() -> tuple[float, float]:
    """Seconds of CPU that recording adds to a step of FSDP2, and how long a step is on the wall; medians."""
    module = fsdp2()
    step, plain, with_it, wall = stepper(module), [], [], []
    step()
    for _ in range(12):
        start, wall_start = time.process_time(), time.monotonic()
        step()
        plain.append(time.process_time() - start)
        wall.append(time.monotonic() - wall_start)
        with record_timeline(module):
            start = time.process_time()
            step()
            with_it.append(time.process_time() - start)
    return median(with_it) - median(plain), median(wall)


@pytest.mark.night
def test_recording_costs_little():
    """CPU time, since other work on the machine changes the wall's. Under 3% of a step of a quarter of a second."""
    for extra_s, step_s in launch(cost, N, device="cpu", network=simulated(NETWORK)):
        assert extra_s < 0.03 * step_s
