"""Read timelines from torch.profiler: real DDP, FSDP1 and FSDP2 on gloo, and on NCCL.

    with torch.profiler.profile(record_shapes=True) as prof:    # without shapes, gloo's events have no sizes
        step()
    timeline = read_profile(prof)

Events to look for in a trace, as this file does, or by eye in Perfetto:

    on a CPU    "gloo:all_gather"             a running collective, on gloo's own threads
                "c10d::_allgather_base_"      the host asks for it
                "aten::..."                   the host computes
    on a GPU    "ncclDevKernel_AllGather..."  a running collective, on NCCL's stream; its args tell kind, size, group
                any other kernel or copy      the GPU computes
                same args["correlation"]      the host launches that kernel
    on both     "FSDP::all_gather (blocks.0)", "Optimizer.step#AdamW.step": labels, see `range_labels`

[Note: what a profile can't tell] A collective's span begins when this rank hands it over, so it includes the time in
which this rank waits for slower ranks: compare ranks. A trace shows what the host waits for only under `label_units`.

Not yet run on a GPU: the reader of NCCL's events follows Kineto's documented names and fields, and is tested with a
trace written by hand in that format.

Source: torch.profiler; Kineto's `output_json.cpp` and `GenericTraceActivity`; c10d's `record_param_comms`.
"""

import gzip
import json
import math
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from shardtrace.profile_labels import Event, host_labels
from shardtrace.spans import Leaf, Sent, Served, compute_span, leaves, link_spans, ordered, wait_spans, with_units
from shardtrace.timeline import Span, Timeline

_ELEMENT_BYTES = {"float": 4, "float32": 4, "int": 4, "double": 8, "float64": 8, "long": 8, "long int": 8, "int64": 8}
_ELEMENT_BYTES |= {
    "half": 2,
    "float16": 2,
    "bfloat16": 2,
    "c10::half": 2,
    "c10::bfloat16": 2,
    "short": 2,
    "short int": 2,
}
_NOT_COMPUTE = ("c10d", "_c10d_functional", "c10d_functional", "autograd", "torch", "profiler")
_ONE_THOUGHT_S = 50e-6  # a shorter gap between two operations is Python's overhead and counts as part of them

# The host's call: the collective it asks for, the one gloo runs, and the argument with the sizes that gloo shows.
_ASKED = {
    "c10d::allreduce_": ("all_reduce", "all_reduce", 0),
    "c10d::broadcast_": ("broadcast", "broadcast", 0),
    "c10d::reduce_": ("reduce", "reduce", 0),
    "c10d::allgather_": ("all_gather", "all_gather", 1),
    "c10d::_allgather_base_": ("all_gather", "all_gather", 1),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", "all_reduce", 1),
    "c10d::alltoall_base_": ("all_to_all", "all_to_all", 1),
}
_NCCL = {"AllGather": "all_gather", "ReduceScatter": "reduce_scatter", "AllReduce": "all_reduce"}
_NCCL |= {"Broadcast": "broadcast", "SendRecv": "send", "Reduce": "reduce"}
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")


def read_profile(source: torch.profiler.profile | str | Path) -> Timeline:
    """Return the timeline of one rank, from a stopped profiler or from a trace file (.json, .json.gz) that it exported.

    A profiler exports its trace only once: to keep it as a file too, export it and read the file. Times are
    time.monotonic() of this machine. On a CPU a collective's bytes are 0 without record_shapes=True.

    Raises ValueError if the trace has already been exported, or does not have the collectives' times: over a simulated
    network, or without CUDA activity on a GPU.
    """
    trace = _loaded(source)
    distributed = trace.get("distributedInfo", {})
    if distributed.get("backend") == "simulated":
        raise ValueError(
            "torch.profiler sees gloo's own time, not that of the simulated network: use record_timeline instead"
        )
    shift_s = trace.get("baseTimeNanoseconds", 0) * 1e-9 - (time.time() - time.monotonic())
    events = [Event.of(e, shift_s) for e in trace["traceEvents"] if e.get("ph") == "X"]
    rank, world_size = distributed.get("rank", 0), distributed.get("world_size", 1)
    found = {thread: leaves(labels) for thread, labels in host_labels(events).items()}
    if any(e.category == "kernel" for e in events):
        return _timeline_of_gpu(rank, events, found)
    if "nccl" in distributed.get("backend", ""):
        raise ValueError("the trace has no GPU kernels: profile with activities=[CPU, CUDA], the default, on a GPU")
    return _timeline_of_cpu(rank, world_size, events, found)


def _loaded(source: torch.profiler.profile | str | Path) -> dict[str, Any]:
    if isinstance(source, torch.profiler.profile):
        with tempfile.TemporaryDirectory(prefix="shardlab-") as folder:
            path = Path(folder) / "trace.json"
            try:
                source.export_chrome_trace(str(path))
            except RuntimeError as error:
                raise ValueError("the profiler gives its trace away once: read the file that it exported") from error
            return json.loads(path.read_bytes())
    data = Path(source).read_bytes()
    return json.loads(gzip.decompress(data) if str(source).endswith(".gz") else data)


def _with_units(sent: list[tuple[Sent, Any]], found: dict[Any, list[Leaf]]) -> list[Served]:
    """Find each collective's unit; `sent` pairs the collective with the thread that asked for it."""
    by_thread = defaultdict(list)
    for s, thread in sent:
        by_thread[thread].append(s)
    return [one for thread, some in by_thread.items() for one in with_units(found.get(thread, []), some)]


# ------------------------------------------------------------------------------------------------------- CPU and gloo


def _timeline_of_cpu(rank: int, world_size: int, events: list[Event], found: dict[Any, list[Leaf]]) -> Timeline:
    gloos = {e.thread for e in events if e.name.startswith("gloo:")}
    ops = _outermost([e for e in events if e.category == "cpu_op" and _computes(e.name) and e.thread not in gloos])
    spans = (compute_span(found.get(e.thread, []), e.start_s, e.start_s, e.end_s) for e in ops)
    compute = _bridged([s for s in spans if s.name != "wait"])
    served = _with_units(_carried_by_gloo(events, world_size), found)
    waits = [span for some in found.values() for span in wait_spans(some, served)]
    return ordered(rank, [*compute, *waits, *link_spans(served)])


def _computes(name: str) -> bool:
    namespace, colons, _ = name.partition("::")
    return bool(colons) and namespace not in _NOT_COMPUTE


def _outermost(ops: list[Event]) -> Iterator[Event]:
    end_s: dict[Any, float] = {}
    for op in sorted(ops, key=lambda e: (e.start_s, -e.end_s)):
        if op.start_s >= end_s.get(op.thread, 0.0):
            end_s[op.thread] = op.end_s
            yield op


def _bridged(spans: list[Span]) -> list[Span]:
    """Merge operations of one unit, and the short gaps between them, into one span."""
    found: list[Span] = []
    for s in spans:
        last = found[-1] if found else None
        if last and (last.name, last.unit) == (s.name, s.unit) and s.start_s - last.end_s < _ONE_THOUGHT_S:
            found[-1] = replace(last, end_s=max(last.end_s, s.end_s))
        else:
            found.append(s)
    return found


def _carried_by_gloo(events: list[Event], world_size: int) -> list[tuple[Sent, Any]]:
    """Match gloo's events with the host's calls: gloo's threads run calls of one kind and size in order."""
    calls = defaultdict(deque)
    for e in sorted(events, key=lambda e: e.start_s):
        if e.name in _ASKED:
            _, carried_out, argument = _ASKED[e.name]
            calls[carried_out, _numel(e, argument)].append(e)
    sent = []
    for e in sorted(events, key=lambda e: e.start_s):
        if e.name.startswith("gloo:"):
            kind, numel = e.name.removeprefix("gloo:"), _numel(e, 0)
            waiting = calls[kind, numel]
            call = waiting.popleft() if waiting and waiting[0].start_s <= e.start_s else e
            kind = _ASKED[call.name][0] if call is not e else kind
            if kind == "all_gather":  # a profile lacks the sizes in a list of results: assume all ranks
                numel = _numel(call, 0) if call.name == "c10d::_allgather_base_" else numel * world_size
            full_bytes = numel * _element_bytes(e.args.get("Input type", [""])[0])
            sent.append((Sent(kind, full_bytes, call.start_s, None, e.start_s, e.end_s), call.thread))
    return sent


def _numel(event: Event, argument: int) -> int:
    """Elements of a tensor argument, or of all tensors in a list argument; 0 without record_shapes."""
    dims = event.args.get("Input Dims", [])[argument : argument + 1]
    shapes = dims[0] if dims and dims[0] and isinstance(dims[0][0], list) else dims
    return sum(math.prod(shape) for shape in shapes)


def _element_bytes(dtype: str) -> int:
    return _ELEMENT_BYTES.get(dtype.lower(), 1)


# ------------------------------------------------------------------------------------------------------- GPU and NCCL


def _timeline_of_gpu(rank: int, events: list[Event], found: dict[Any, list[Leaf]]) -> Timeline:
    launches = {e.args["correlation"]: e for e in events if e.category in _LAUNCHES and "correlation" in e.args}
    compute, sent = [], []
    for e in events:
        launch = launches.get(e.args.get("correlation"), e)
        if e.category in _ON_GPU and "nccl" in e.name.lower():
            sent.append((_carried_by_nccl(e, launch.start_s), launch.thread))
        elif e.category in _ON_GPU:
            compute.append(compute_span(found.get(launch.thread, []), launch.start_s, e.start_s, e.end_s))
    return ordered(rank, [*compute, *link_spans(_with_units(sent, found))])


def _carried_by_nccl(kernel: Event, issued_s: float) -> Sent:
    """Read a collective from its kernel. Bytes are 0 if c10d did not pass sizes, as under a CUDA graph."""
    kind = next((kind for word, kind in _NCCL.items() if f"_{word}" in kernel.name), "other")
    numel = max(kernel.args.get("In msg nelems", 0), kernel.args.get("Out msg nelems", 0))
    full_bytes = numel * _element_bytes(kernel.args.get("dtype", ""))
    return Sent(kind, full_bytes, issued_s, None, kernel.start_s, kernel.end_s)
