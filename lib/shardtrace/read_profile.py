"""Read timelines from torch.profiler: real DDP, FSDP1 and FSDP2 on gloo, and on NCCL.

    with torch.profiler.profile(record_shapes=True) as prof:    # without shapes, gloo's events have no sizes
        step()
    timeline = read_profile(prof)

Events to look for in a trace, as this file does, or by eye in Perfetto:

    on a CPU    "gloo:all_gather"             a running collective, on gloo's own threads
                "c10d::_allgather_base_"      the host asks for it
                "aten::..."                   the host computes
    on a GPU    "ncclDevKernel_AllGather..."  a running collective, on NCCL's stream; its args tell kind, size, group
                any other kernel              the GPU computes
                "Memcpy HtoD ..."             a copy
                same args["correlation"]      the host launches that kernel
    on both     "FSDP::all_gather (blocks.0)", "Optimizer.step#AdamW.step": labels, see `range_labels`

[Note: what a profile can't tell] A collective's span begins when this rank hands it over, so it includes the time in
which this rank waits for slower ranks: compare ranks. A trace shows what the host waits for only under `label_units`.

[Note: times may be negative] time.monotonic() begins when the machine was booted. A laptop that reads a cluster's trace
was often booted later, so nothing may take 0 for the beginning.

The reader is tested with traces after Kineto's and c10d's sources. On an H100, one rank under NCCL, its computing time
was the union of the trace's kernels; with collectives between GPUs, none was recorded by this code yet.

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

from shardtrace.labels_to_spans import (
    Leaf,
    Sent,
    Served,
    compute_span,
    leaves,
    link_spans,
    ordered,
    wait_spans,
    with_units,
)
from shardtrace.profile_gpu import has_kernels, of_gpu
from shardtrace.profile_labels import Event, element_bytes, host_labels, numel
from shardtrace.timeline import Span, Timeline

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
_KNOWN = {"cpu_op", "user_annotation", "kernel"}  # categories of events; a trace of torch has one of them


def read_profile(source: torch.profiler.profile | str | Path) -> Timeline:
    """Return the timeline of one rank, from a stopped profiler or from a trace file (.json, .json.gz) that it exported.

    A profiler exports its trace only once: to keep it as a file too, export it and read the file. Times are
    time.monotonic() of this machine. On a CPU a collective's bytes are 0 without record_shapes=True.

    Raises ValueError if the trace has already been exported, is of another format or device, or does not have the
    collectives' times: over a simulated network, or without CUDA activity on a GPU.
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
    carried = _carried_by_gloo(events, world_size)
    if has_kernels(events):
        spans, by_nccl = of_gpu(events, found)
        return ordered(rank, [*spans, *link_spans(_with_units([*by_nccl, *carried], found))])
    if "nccl" in distributed.get("backend", ""):
        raise ValueError("the trace has no GPU kernels: profile with activities=[CPU, CUDA], the default, on a GPU")
    return _timeline_of_cpu(rank, events, _with_units(carried, found), found)


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
    trace = json.loads(gzip.decompress(data) if str(source).endswith(".gz") else data)
    if not isinstance(trace, dict) or "traceEvents" not in trace:
        raise ValueError(f"{source} is no trace of torch.profiler 1.9 or newer: it has no object with `traceEvents`")
    categories = {e["cat"] for e in trace["traceEvents"] if e.get("ph") == "X" and e.get("cat", "Trace") != "Trace"}
    if categories and not categories & _KNOWN or any("mtia" in c for c in categories):
        raise ValueError(f"{source} has events of another profiler or device: {', '.join(sorted(categories))}")
    return trace


def _with_units(sent: list[tuple[Sent, Any]], found: dict[Any, list[Leaf]]) -> list[Served]:
    """Find each collective's unit; `sent` pairs the collective with the thread that asked for it."""
    by_thread = defaultdict(list)
    for s, thread in sent:
        by_thread[thread].append(s)
    return [one for thread, some in by_thread.items() for one in with_units(found.get(thread, []), some)]


# ------------------------------------------------------------------------------------------------------- CPU and gloo


def _timeline_of_cpu(rank: int, events: list[Event], served: list[Served], found: dict[Any, list[Leaf]]) -> Timeline:
    gloos = {e.thread for e in events if e.name.startswith("gloo:")}
    ops = _outermost([e for e in events if e.category == "cpu_op" and _computes(e.name) and e.thread not in gloos])
    spans = (compute_span(found.get(e.thread, []), e.start_s, e.start_s, e.end_s) for e in ops)
    compute = _bridged([s for s in spans if s.name != "wait"])
    waits = [span for some in found.values() for span in wait_spans(some, served)]
    return ordered(rank, [*compute, *waits, *link_spans(served)])


def _computes(name: str) -> bool:
    namespace, colons, _ = name.partition("::")
    return bool(colons) and namespace not in _NOT_COMPUTE


def _outermost(ops: list[Event]) -> Iterator[Event]:
    end_s: dict[Any, float] = {}
    for op in sorted(ops, key=lambda e: (e.start_s, -e.end_s)):
        if op.start_s >= end_s.get(op.thread, -math.inf):
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
            calls[carried_out, numel(e, argument)].append(e)
    sent = []
    for e in sorted(events, key=lambda e: e.start_s):
        if e.name.startswith("gloo:"):
            kind, elements = e.name.removeprefix("gloo:"), numel(e, 0)
            waiting = calls[kind, elements]
            call = waiting.popleft() if waiting and waiting[0].start_s <= e.start_s else e
            kind = _ASKED[call.name][0] if call is not e else kind
            if kind == "all_gather":  # a profile lacks the sizes in a list of results: assume all ranks
                elements = numel(call, 0) if call.name == "c10d::_allgather_base_" else elements * world_size
            full_bytes = elements * element_bytes(e.args.get("Input type", [""])[0])
            sent.append((Sent(kind, full_bytes, call.start_s, None, e.start_s, e.end_s), call.thread))
    return sent
