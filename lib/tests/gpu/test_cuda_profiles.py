"""Profiles of CUDA and ROCm, which a generator writes as Kineto does, through the reader of profiles."""

import json
import time
from collections import Counter

import pytest
from cuda_trace import AUTOGRAD, GLOO, Trace, said_by_c10d

from shardtrace.read_profile import read_profile
from shardtrace.timeline import Timeline
from shardtrace.trace_file import trace_events

SEND_RECV, GENERIC = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_Generic(ncclDevComm*)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
US = 1e-6


def links(trace: Trace, tmp_path) -> list[tuple[str, int]]:
    return [(s.name, s.bytes) for s in read_profile(trace.write(tmp_path / "trace.json")).lane("link")]


def three_steps() -> Trace:
    """Each step of 100 us: forward, a backward of two buckets on autograd's thread, an optimizer."""
    trace = Trace()
    for step in range(3):
        at = 100 * step
        trace.label(f"ProfilerStep#{step}", at, 100)
        trace.label("DistributedDataParallel.forward", at, 20)
        trace.kernel("gemm", at + 5, at + 6, 10)
        trace.backward(at + 30, 40)
        trace.kernel("gemm_backward", at + 31, at + 32, 20, AUTOGRAD)
        for bucket in range(2):
            asked = at + 40 + 15 * bucket
            where = dict(call="allreduce_", annotation="all_reduce", thread=AUTOGRAD)
            trace.collective(ALL_REDUCE, asked, asked + 1, 14, **where, **said_by_c10d("allreduce", 10, 10, "Float"))
        trace.label("Optimizer.step#SGD.step", at + 80, 10)
        trace.kernel("multi_tensor_apply", at + 81, at + 82, 5)
    return trace


def content(t: Timeline) -> list[tuple]:
    return [(s.lane, s.name, s.unit, s.bytes, round((s.start_s - t.start_s) * 1e6)) for s in t.spans]


# ------------------------------------------------------------------------------------------------------------- D1


def before_this_boot() -> int:
    """A moment before this machine was booted, in nanoseconds after the epoch. On its clock, the time is negative."""
    return time.time_ns() - time.monotonic_ns() - 3600 * 10**9


def test_labels_survive_a_reboot_of_the_machine_that_reads(tmp_path):
    now = read_profile(three_steps().write(tmp_path / "now.json"))
    before = read_profile(three_steps().write(tmp_path / "before.json", before_this_boot()))
    assert before.end_s < 0 < now.start_s
    assert content(before) == content(now)
    names = Counter(s.name for s in before.lane("compute"))
    assert names == {"forward": 3, "backward": 3, "optimizer": 3}


def test_a_gloo_trace_survives_a_reboot_too(tmp_path):
    trace = Trace(backend="gloo")
    trace.label("forward (blocks.0)", 0, 40)
    trace.event("cpu_op", "aten::mm", 5, 30)
    trace.event("user_annotation", "gloo:all_reduce", 20, 50, GLOO, **{"Input Dims": [[16]], "Input type": ["float"]})
    t = read_profile(trace.write(tmp_path / "trace.json", before_this_boot()))
    assert (t.compute_s, t.exposed_s) == pytest.approx((30 * US, 35 * US), rel=1e-3)
    assert [(s.name, s.unit) for s in t.lane("compute")] == [("forward", "blocks.0")]


# ------------------------------------------------------------------------------------------------------------- D2, D4


def test_the_kind_is_what_c10d_says_then_the_annotation_then_the_call_then_the_kernel(tmp_path):
    trace = Trace()
    trace.collective(GENERIC, 10, 20, 5, **said_by_c10d("_allgather_base", 10, 40))
    trace.collective(SEND_RECV, 30, 40, 5, call="_reduce_scatter_base_", annotation="_reduce_scatter_base")
    trace.collective(SEND_RECV, 50, 60, 5, annotation="all_to_all")
    trace.collective(SEND_RECV, 70, 80, 5, call="alltoall_base_")
    trace.collective(SEND_RECV, 90, 100, 5, call="send", annotation="send 0->1")
    trace.collective(SEND_RECV, 110, 120, 5, call="recv_", annotation="coalesced")
    trace.collective(ALL_REDUCE, 130, 140, 5, call="barrier", annotation="all_reduce_barrier")
    trace.collective("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*)", 150, 160, 5)
    trace.collective("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", 170, 180, 5)
    trace.kernel(GENERIC, None, 200, 5)
    trace.kernel(SEND_RECV, None, 220, 5)
    assert [name for name, _ in links(trace, tmp_path)] == [
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "all_to_all",
        "send",
        "recv",
        "barrier",
        "broadcast",
        "reduce_scatter",
        "other",
        "other",
    ]


@pytest.mark.parametrize("name", ["all_to_allv", "allreduce_coalesced", "allgather_into_tensor_coalesced", "gather"])
def test_collective_names_of_record_param_comms(name, tmp_path):
    kinds = {"all_to_allv": "all_to_all", "allreduce_coalesced": "all_reduce", "gather": "gather"}
    trace = Trace()
    trace.collective(GENERIC, 10, 20, 5, **said_by_c10d(name, 10, 40))
    assert links(trace, tmp_path)[0][0] == kinds.get(name, "all_gather")


def test_bytes_are_those_of_the_call_where_the_kernel_does_not_tell(tmp_path):
    """As before torch 2.3, with record_shapes. A list has no type of its own: NCCL's annotation has it."""
    half, two = "c10::Half", {"types": ["c10::Half", "c10::Half", ""]}
    trace = Trace()
    lists = {"types": ["TensorList", "", half]}
    trace.collective(ALL_REDUCE, 10, 20, 5, "allreduce_", "all_reduce", [[[30], [2, 5]], [], []], **lists)
    trace.collective(SEND_RECV, 30, 40, 5, "_allgather_base_", "_all_gather_base", [[4, 25], [25], []], **two)
    trace.collective(SEND_RECV, 50, 60, 5, "_reduce_scatter_base_", "_reduce_scatter_base", [[25], [100], []], **two)
    trace.collective(SEND_RECV, 70, 80, 5, "alltoall_base_", "all_to_all", [[90], [60], []], **two)
    trace.collective(ALL_REDUCE, 90, 100, 5, "allreduce_", "all_reduce", [[], [], []], types=["TensorList", "", ""])
    trace.collective(ALL_REDUCE, 110, 120, 5, "allreduce_", "all_reduce")
    assert links(trace, tmp_path) == [
        ("all_reduce", 80),
        ("all_gather", 200),
        ("reduce_scatter", 200),
        ("all_to_all", 120),  # what this rank puts in
        ("all_reduce", 0),
        ("all_reduce", 0),
    ]


def test_a_kernel_that_tells_its_size_is_believed(tmp_path):
    trace = Trace()
    trace.collective(SEND_RECV, 10, 20, 5, "alltoall_base_", "all_to_all", **said_by_c10d("all_to_allv", 60, 90))
    trace.collective(GENERIC, 30, 40, 5, **said_by_c10d("_reduce_scatter_base", 100, 25))
    assert links(trace, tmp_path) == [("all_to_all", 120), ("reduce_scatter", 200)]


# ------------------------------------------------------------------------------------------------------------- D3


def test_buckets_are_counted_anew_in_every_step(tmp_path):
    t = read_profile(three_steps().write(tmp_path / "trace.json"))
    assert Counter(s.unit for s in t.lane("link")) == {"bucket 0": 3, "bucket 1": 3}


def test_an_optimizers_step_ends_a_backward_where_the_profiler_has_no_steps(tmp_path):
    trace = three_steps()
    trace.events = [e for e in trace.events if not e["name"].startswith("ProfilerStep")]
    t = read_profile(trace.write(tmp_path / "trace.json"))
    assert Counter(s.unit for s in t.lane("link")) == {"bucket 0": 3, "bucket 1": 3}


# ------------------------------------------------------------------------------------------------------------- D5


def with_copies() -> Trace:
    """A collective of 100 us; beside it 30 us of computation, and copies for another 40."""
    trace = Trace()
    trace.label("forward (blocks.2)", 0, 30)
    trace.collective(ALL_REDUCE, 5, 10, 100, **said_by_c10d("allreduce", 10, 10, "Float"))
    trace.kernel("gemm", 10, 10, 30)
    trace.copy("Memcpy HtoD (Pinned -> Device)", 12, 50, 30, 4096)
    trace.copy("Memcpy DtoH (Device -> Pageable)", 14, 70, 20, 512)
    trace.copy("Memset (Device)", 16, 95, 5, 64)
    return trace


def test_copies_are_no_computation_and_hide_nothing(tmp_path):
    t = read_profile(with_copies().write(tmp_path / "trace.json"))
    assert [(s.name, s.bytes, s.unit) for s in t.lane("copy")] == [
        ("HtoD", 4096, "blocks.2"),
        ("DtoH", 512, "blocks.2"),
        ("memset", 64, "blocks.2"),
    ]
    assert (t.compute_s, t.communication_s, t.exposed_s) == pytest.approx((30 * US, 100 * US, 70 * US), rel=1e-3)


def test_copies_have_threads_of_their_own_in_a_trace_file(tmp_path):
    """Two at the same time need two, since a thread's events must nest."""
    events = list(trace_events([read_profile(with_copies().write(tmp_path / "trace.json"))]))
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert list(names.values()) == ["compute", "wait", "link", "copy", "copy"]
    of_copies = [(e["name"], names[e["tid"]]) for e in events if e["ph"] == "X" and e["cat"] == "copy"]
    assert of_copies == [("HtoD blocks.2", "copy"), ("memset blocks.2", "copy"), ("DtoH blocks.2", "copy")]


# ------------------------------------------------------------------------------------------------------------- D6


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        ([{"ph": "X", "cat": "Kernel", "name": "gemm", "ts": 0, "dur": 1}], "no object with `traceEvents`"),
        ({"schema": "1.0.1", "nodes": []}, "no object with `traceEvents`"),  # an execution trace
        (
            {"traceEvents": [{"ph": "X", "cat": "Kernel", "name": "gemm", "ts": 0, "dur": 1}]},
            "another profiler.*Kernel",
        ),
        (
            {"traceEvents": [{"ph": "X", "cat": c, "name": "x", "ts": 0} for c in ("cpu_op", "mtia_ccp_events")]},
            "another profiler or device.*mtia",
        ),
    ],
)
def test_other_formats_are_refused_in_words(trace, words, tmp_path):
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    with pytest.raises(ValueError, match=words):
        read_profile(tmp_path / "trace.json")


@pytest.mark.parametrize(
    "kernel",
    [
        "void deep_ep::internode::dispatch<true>(int4*)",
        "void vllm::cross_device_reduce_1stage<half, 8>(vllm::RankData*)",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
        "nvshmemi_transfer_quiet",
    ],
)
def test_kernels_that_communicate_without_nccl_are_warned_of(kernel, tmp_path):
    trace = with_copies()
    trace.kernel(kernel, 20, 150, 10)
    with pytest.warns(UserWarning, match="seem to communicate") as caught:
        t = read_profile(trace.write(tmp_path / "trace.json"))
    assert len(t.lane("link")) == 1
    assert "1 x " in str(caught[0].message)
    assert "<" not in str(caught[0].message)


def test_ordinary_kernels_are_not(tmp_path, recwarn):
    trace = with_copies()
    for name in ("triton_poi_fused_all_reduce_mul_0", "vectorized_gather_kernel", "reduce_kernel", "Memset"):
        trace.kernel(name, 20, 150, 10)
    read_profile(trace.write(tmp_path / "trace.json"))
    assert not recwarn.list


# ------------------------------------------------------------------------------------------------------------- gloo


def test_gloo_counts_beside_a_gpus_kernels(tmp_path):
    """Two ranks on one GPU talk by gloo: 60 us of it, of which 20 are beside a kernel."""
    trace = Trace(backend="gloo", world_size=2)
    sizes = {"Input Dims": [[[16]], []], "Input type": ["TensorList", ""]}
    trace.event("cpu_op", "c10d::allreduce_", 0, 5, **sizes)
    trace.kernel("gemm", 2, 10, 30)
    trace.event("user_annotation", "gloo:all_reduce", 20, 60, GLOO, **{"Input Dims": [[16]], "Input type": ["float"]})
    t = read_profile(trace.write(tmp_path / "trace.json"))
    assert [(s.name, s.bytes) for s in t.lane("link")] == [("all_reduce", 64)]
    assert (t.communication_s, t.exposed_s) == pytest.approx((60 * US, 40 * US), rel=1e-3)
