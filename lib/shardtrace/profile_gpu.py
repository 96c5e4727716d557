"""Read a GPU's work from torch.profiler's events: kernels that compute, copies, and NCCL's (or RCCL's) collectives.

[Note: the kind of a collective] A kernel's name need not tell it. RCCL's kernels are all "Generic". NCCL's "SendRecv"
runs every all_to_all, and in older versions also all_gathers and reduce_scatters. So these are asked in turn: the
kernel's argument "Collective name", the "nccl:..." annotation and the "c10d::..." call around its launch, and its name.

Copies have a lane of their own. They use the copy engines or little of the GPU, so computation goes on beside them, and
a collective beside a copy is still exposed.

Source: Kineto's `output_json.cpp` and `GenericTraceActivity`; c10d's `record_param_comms` (ParamCommsUtils.hpp) and
ProcessGroupNCCL.cpp (RECORD_PARAM_COMMS_DATA has the names, `collective` the annotations).
"""

import re
import warnings
from collections import Counter, defaultdict
from typing import Any

from shardtrace.labels_to_spans import Leaf, Sent, compute_span, leaf_at, leaves
from shardtrace.profile_labels import Event, element_bytes, numel
from shardtrace.timeline import Span

_LAUNCHES = ("cuda_runtime", "cuda_driver")
_COPIES = ("gpu_memcpy", "gpu_memset")
_CALL = re.compile(r"nccl:|c10d::")
_KINDS = {  # the first one in a name, in any case: "c10d::_allgather_base_", "ncclDevKernel_AllGather_RING_LL", ...
    "barrier": "barrier",  # "nccl:all_reduce_barrier"
    "all_?reduce": "all_reduce",
    "all_?gather": "all_gather",
    "reduce_?scatter": "reduce_scatter",
    "all_?to_?all": "all_to_all",
    "broadcast": "broadcast",
    "gather": "gather",
    "scatter": "scatter",
    "reduce": "reduce",
    "send": "send",
    "recv": "recv",
}
# Kernels that communicate without NCCL: DeepEP, NVSHMEM, vLLM's all_reduce, torch's symmetric memory, MSCCL++, ...
_FOREIGN = re.compile(
    "^(?!triton_).*(nvshmem|deep_?ep|cross_device_reduce|symm_mem|multimem|(one|two)_?shot|mscclpp|all_?reduce)", re.I
)


def has_kernels(events: list[Event]) -> bool:
    return any(e.category == "kernel" for e in events)


def of_gpu(events: list[Event], found: dict[Any, list[Leaf]]) -> tuple[list[Span], list[tuple[Sent, Any]]]:
    """Return the spans of computation and of copies; and the collectives, each with the thread that asked for it.

    `found` has the labels of each host thread. Warns if kernels of another library seem to communicate.
    """
    launches = {e.args["correlation"]: e for e in events if e.category in _LAUNCHES and "correlation" in e.args}
    calls: dict[Any, list[Event]] = defaultdict(list)
    for e in events:
        if e.category in ("cpu_op", "user_annotation") and _CALL.match(e.name):
            calls[e.thread].append(e)
    around = {thread: leaves(some) for thread, some in calls.items()}
    spans: list[Span] = []
    sent: list[tuple[Sent, Any]] = []
    for e in events:
        launch = launches.get(e.args.get("correlation"))
        thread, asked_s = (launch.thread, launch.start_s) if launch else (None, e.start_s)
        if e.category == "kernel" and "nccl" in e.name.lower():
            leaf = leaf_at(around.get(thread, []), asked_s)
            sent.append((_carried_by_nccl(e, asked_s, leaf.within if leaf else ()), thread))
        elif e.category == "kernel":
            spans.append(compute_span(found.get(thread, []), asked_s, e.start_s, e.end_s))
        elif e.category in _COPIES:
            unit = compute_span(found.get(thread, []), asked_s, e.start_s, e.end_s).unit
            spans.append(Span("copy", _direction(e), e.start_s, e.end_s, unit, int(e.args.get("bytes", 0))))
    _warn_of_foreign([e.name for e in events if e.category == "kernel" and "nccl" not in e.name.lower()])
    return spans, sent


def _carried_by_nccl(kernel: Event, issued_s: float, calls: tuple[Event, ...]) -> Sent:
    """Return a collective; `calls` are those around its launch, innermost last. Bytes are 0 if nothing tells them."""
    names = [kernel.args.get("Collective name", ""), *(e.name for e in reversed(calls)), kernel.name.split("(")[0]]
    kind = next((kind for name in names if (kind := _kind(name))), "other")
    into, out = (kernel.args.get(f"{way} msg nelems", 0) for way in ("In", "Out"))
    elements = into if kind == "all_to_all" else max(into, out)
    full_bytes = elements * element_bytes(kernel.args.get("dtype", ""))
    return Sent(kind, full_bytes or _bytes(kind, calls), issued_s, None, kernel.start_s, kernel.end_s)


def _kind(name: str) -> str:
    """Kind that a name tells; "" for "ncclDevKernel_SendRecv", "ncclDevKernel_Generic" and "nccl:coalesced"."""
    if "SendRecv" in name:
        return ""
    return next((kind for pattern, kind in _KINDS.items() if re.search(pattern, name, re.I)), "")


def _bytes(kind: str, calls: tuple[Event, ...]) -> int:
    """Unsharded size in bytes: of the larger of a call's output and input, or of an all_to_all's input.

    0 without record_shapes=True.
    """
    arguments = (1,) if kind == "all_to_all" else (0, 1)  # c10d's calls have the output first, if they have two
    elements = max((numel(e, i) for e in calls for i in arguments if e.name.startswith("c10d::")), default=0)
    types = [t for e in reversed(calls) for t in e.args.get("Input type", [])[:2] if element_bytes(t, 0)]
    return elements * (element_bytes(types[0]) if types else 0)


def _direction(copy: Event) -> str:
    """ "HtoD" for "Memcpy HtoD (Pinned -> Device)", "memset" for "Memset (Device)"."""
    words = copy.name.split(" ")
    return words[1] if words[0] == "Memcpy" and len(words) > 1 else words[0].lower()


def _warn_of_foreign(names: list[str]) -> None:
    short = (re.sub(r"\(anonymous namespace\)::|^void ", "", name) for name in names if _FOREIGN.search(name))
    foreign = Counter(re.split("[(<]", name)[0] for name in short)
    if foreign:
        listed = ", ".join(f"{count} x {name}" for name, count in foreign.most_common(3))
        warnings.warn(f"these kernels seem to communicate, and are counted as computation: {listed}", stacklevel=4)
