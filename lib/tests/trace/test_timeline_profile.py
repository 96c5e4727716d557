"""Timelines out of torch.profiler: on real gloo ranks, and from a trace by hand in the format that a GPU's has."""

import gzip
import json
import time
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile

from shardcourse.exercises.trace import communication
from shardlab import fsdp as ours
from shardlab import launch
from shardlab.measure.traffic import record_traffic
from shardlab.model import ModelConfig, Transformer
from shardlab.text_batches import batch
from shardsim import simulated
from shardtrace.read_profile import read_profile
from shardtrace.record_timeline import record_timeline
from shardtrace.timeline import Timeline

SMALL = ModelConfig(vocab_size=256, dim=64, n_layers=3, n_heads=4, n_kv_heads=2, hidden_dim=96, max_seq_len=64)
BLOCKS = [f"blocks.{i}" for i in range(SMALL.n_layers)]
N = 2


def engine(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    model = Transformer(SMALL)
    if name == "ddp":
        return DistributedDataParallel(model, bucket_cap_mb=0.1)
    if name == "fsdp1":
        policy = ModuleWrapPolicy({type(model.blocks[0])})
        return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=torch.device("cpu"))
    for part in (*model.blocks, model):
        (fully_shard if name == "fsdp2" else ours.fully_shard)(part)
    return model


def profiled() -> dict:
    """Of each engine: what was read from a bare profile and from a recording, when, and what was sent by count."""
    found = {}
    for name in ("ddp", "fsdp1", "fsdp2", "our fsdp"):
        module = engine(name)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

        def step(module=module, optimizer=optimizer) -> None:
            module(*batch(0, 1, dist.get_rank(), N, global_batch=2 * N, seq_len=16)).backward()
            optimizer.step()
            optimizer.zero_grad()

        step()
        step()  # torch's DDP deals its buckets out anew in the second
        with record_traffic() as traffic:
            step()
        start_s = time.monotonic()
        with profile(record_shapes=True) as bare:
            step()
        ended_s = time.monotonic()
        with record_timeline(module) as recording:
            step()
        timelines = read_profile(bare), recording.timeline
        sent = Counter((c.kind, max(c.input_bytes, c.output_bytes)) for c in traffic.collectives)
        found[name] = timelines, (start_s, ended_s), sent
    return found


@pytest.fixture(scope="module")
def by_rank() -> list[dict]:
    return launch(profiled, N, device="cpu", stream=False)


ENGINES = ["ddp", "fsdp1", "fsdp2", "our fsdp"]


def served(t: Timeline, kind: str) -> list[str]:
    return sorted(s.unit for s in t.lane("link") if s.name == kind)


@pytest.mark.parametrize("name", ENGINES)
def test_every_collective_is_found_with_its_bytes(by_rank, name):
    """The flight recorder counts them too."""
    for rank, found in enumerate(by_rank):
        timelines, _, sent = found[name]
        for t in timelines:
            assert t.rank == rank
            assert Counter((s.name, s.bytes) for s in t.lane("link")) == sent


@pytest.mark.parametrize("name", ENGINES)
def test_times_are_those_of_the_step(by_rank, name):
    for found in by_rank:
        timelines, (start_s, ended_s), _ = found[name]
        assert start_s - 1e-3 < timelines[0].start_s < timelines[0].end_s < ended_s + 1e-3
        for t in timelines:
            for s in t.lane("link"):
                assert s.issued_s <= s.start_s < s.end_s


@pytest.mark.parametrize("name", ENGINES)
def test_computation_has_names(by_rank, name):
    """Forward comes before backward, backward before the optimizer; FSDP2 says itself what each block does."""
    for found in by_rank:
        timelines, *_ = found[name]
        for t in timelines:
            first = {n: min(s.start_s for s in t.lane("compute") if s.name == n) for n in ("backward", "optimizer")}
            assert first["backward"] < first["optimizer"]
        for t in timelines[1:] if name != "fsdp2" else timelines:
            units = {(s.name, s.unit) for s in t.lane("compute")}
            assert units >= {(what, block) for what in ("forward", "backward") for block in BLOCKS}


def test_units_that_were_served(by_rank):
    """FSDP2 and ours say so themselves, FSDP1 inside of label_units; DDP's buckets are counted."""
    gathers, reductions = sorted([*BLOCKS, *BLOCKS, "root"]), sorted([*BLOCKS, "root"])
    for found in by_rank:
        for name in ("fsdp1", "fsdp2", "our fsdp"):
            timelines = found[name][0]
            for t in timelines[1:] if name == "fsdp1" else timelines:
                assert served(t, "all_gather") == gathers
                assert served(t, "reduce_scatter") == reductions
        for t in found["ddp"][0]:
            assert served(t, "all_reduce") == ["bucket 0", "bucket 1", "bucket 2", "bucket 3"]
        assert set(served(found["fsdp1"][0][0], "all_gather")) == {""}, "a bare profile does not say"


def gathered_by_pairs() -> list[int]:
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    whole = torch.empty(64)
    with profile(record_shapes=True) as bare:
        dist.all_gather_into_tensor(whole, torch.ones(32), group=pairs[dist.get_rank() // 2])
    return [s.bytes for s in read_profile(bare).lane("link")]


def test_a_gathers_bytes_are_those_of_its_group():
    assert launch(gathered_by_pairs, 4, device="cpu", stream=False) == [[64 * 4]] * 4


def test_what_gloo_copies_on_its_threads_is_no_computation(tmp_path):
    """By hand: the host computes for 30 us, gloo carries a collective for 100 and copies inside of it for 40."""
    events = [
        event("cpu_op", "c10d::allreduce_", 1, 0, 5, **{"Input Dims": [[[16]], []], "Input type": ["TensorList", ""]}),
        event("cpu_op", "aten::mm", 1, 10, 30),
        event("user_annotation", "gloo:all_reduce", 2, 20, 100, **{"Input Dims": [[16]], "Input type": ["float"]}),
        event("cpu_op", "aten::copy_", 2, 60, 40),
    ]
    info = {"backend": "gloo", "rank": 0, "world_size": 2}
    trace = {"distributedInfo": info, "baseTimeNanoseconds": time.time_ns(), "traceEvents": events}
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    t = read_profile(tmp_path / "trace.json")
    assert t.compute_s == pytest.approx(30e-6, rel=1e-3)
    assert (t.communication_s, t.exposed_s) == pytest.approx((100e-6, 80e-6), rel=1e-3)
    assert [(s.name, s.bytes) for s in t.lane("link")] == [("all_reduce", 64)]


def test_a_trace_that_is_gone(tmp_path):
    with profile() as prof:
        torch.ones(2) + 1
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    with pytest.raises(ValueError, match="read the file"):
        read_profile(prof)
    assert read_profile(tmp_path / "trace.json").compute_s > 0
    assert read_profile(tmp_path / "trace.json").end_s < time.monotonic()


def over_simulated_network():
    with profile() as prof:
        dist.all_reduce(torch.ones(4))
    try:
        read_profile(prof)
    except ValueError as error:
        return str(error)


def test_a_profile_of_a_simulated_network_is_refused():
    (message,) = launch(over_simulated_network, 1, device="cpu", network=simulated("1 Gb/s, 50 us"), stream=False)
    assert "use record_timeline instead" in message


# ------------------------------------------------------------------------------------------------------- NCCL, by hand


def event(category: str, name: str, thread: int, ts: float, dur: float, **args) -> dict:
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": thread, "ts": ts, "dur": dur, "args": args}


def launched(correlation: int, name: str, asked: float, ts: float, dur: float, thread: int = 1, **args) -> list[dict]:
    """A kernel, and the host's call that put it on its stream."""
    stream = 20 if "nccl" in name else 7
    kernel = {"correlation": correlation, "stream": stream, "device": 0, **args}
    return [
        event("cuda_runtime", "cudaLaunchKernelExC", thread, asked, 2, correlation=correlation),
        event("kernel", name, stream, ts, dur, **kernel),
    ]


def nccl(collective: str, inputs: int, outputs: int, dtype: str = "BFloat16") -> dict:
    return {
        "Collective name": collective,
        "In msg nelems": inputs,
        "Out msg nelems": outputs,
        "Group size": 4,
        "dtype": dtype,
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1, 2, 3]",
    }


def trace_of_gpu() -> dict:
    """Two blocks of FSDP2: block 0 is gathered while block 1's backward runs. Thread 1 is Python's, 2 autograd's."""
    gather, reduce = "ncclDevKernel_AllGather_RING_LL", "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL"
    note, gemm = "user_annotation", "sm90_xmma_gemm_bf16bf16"
    events = [
        event(note, "FSDP::pre_forward (blocks.1)", 1, 0, 20),
        event(note, "FSDP::all_gather (blocks.1)", 1, 2, 10),
        *launched(1, gather, 5, 100, 50, **nccl("_allgather_base", 250, 1000)),
        event(note, "FSDP::post_forward (blocks.1)", 1, 40, 5),
        *launched(2, gemm, 30, 150, 100),
        event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 2, 50, 60),
        event(note, "FSDP::pre_backward (blocks.1)", 2, 51, 20),
        event(note, "FSDP::backward_prefetch for blocks.0", 2, 55, 10),
        event(note, "FSDP::all_gather (blocks.0)", 2, 56, 8),
        *launched(3, gather, 58, 260, 50, thread=2, **nccl("_allgather_base", 250, 1000)),
        *launched(4, gemm, 80, 250, 40, thread=2),
        event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 7, 290, 5, correlation=5),
        event("cuda_runtime", "cudaMemcpyAsync", 2, 90, 2, correlation=5),
        event(note, "FSDP::post_backward_reduce (blocks.1)", 2, 95, 10),
        *launched(6, reduce, 97, 320, 80, thread=2, **nccl("_reduce_scatter_base", 1000, 250)),
        event(note, "Optimizer.step#AdamW.step", 1, 120, 30),
        *launched(7, "multi_tensor_apply_kernel", 130, 400, 50),
        {"ph": "i", "name": "Iteration Start: PyTorch Profiler", "pid": 0, "tid": 0, "ts": 0, "s": "g"},
    ]
    info = {"backend": "cpu:gloo,cuda:nccl", "rank": 3, "world_size": 4}
    return {"distributedInfo": info, "baseTimeNanoseconds": time.time_ns(), "traceEvents": events}


@pytest.fixture
def on_gpu(tmp_path) -> Timeline:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace_of_gpu()))
    return read_profile(path)


def test_nccls_kernels(on_gpu):
    start_s = on_gpu.start_s - 100e-6
    assert on_gpu.rank == 3
    found = [(s.name, s.unit, s.bytes, round((s.issued_s - start_s) * 1e6)) for s in on_gpu.lane("link")]
    assert found == [
        ("all_gather", "blocks.1", 2000, 5),
        ("all_gather", "blocks.0", 2000, 58),
        ("reduce_scatter", "blocks.1", 2000, 97),
    ]


def test_other_kernels_compute_for_who_launched_them(on_gpu):
    found = [(s.name, s.unit, round(s.duration_s * 1e6)) for s in on_gpu.lane("compute")]
    assert found == [
        ("forward", "blocks.1", 100),
        ("backward", "blocks.1", 40),
        ("optimizer", "", 50),
    ]
    assert [(s.name, s.unit, round(s.duration_s * 1e6)) for s in on_gpu.lane("copy")] == [("DtoD", "blocks.1", 5)]
    assert not on_gpu.lane("wait"), "the host's waits are not the GPU's"


def test_what_is_exposed_on_a_gpu(on_gpu):
    """The first gather alone; 20 us of the second, partly beside a copy; the reduction after it alone."""
    rows = {row.kind: row for row in communication(on_gpu)}
    assert rows["all_gather"].total_s == pytest.approx(100e-6, rel=1e-2)
    assert rows["all_gather"].exposed_s == pytest.approx(70e-6, rel=1e-2)
    assert rows["reduce_scatter"].exposed_s == pytest.approx(80e-6, rel=1e-2)
    assert rows["all"].share == pytest.approx(180 / 350, rel=1e-2)


def test_a_compressed_trace(tmp_path, on_gpu):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(trace_of_gpu()).encode()))
    assert [(s.lane, s.name, s.unit) for s in read_profile(path).spans] == [
        (s.lane, s.name, s.unit) for s in on_gpu.spans
    ]


def test_a_trace_of_nccl_without_kernels_is_refused(tmp_path):
    trace = trace_of_gpu()
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e.get("cat") != "kernel"]
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    with pytest.raises(ValueError, match="no GPU kernels"):
        read_profile(tmp_path / "trace.json")
