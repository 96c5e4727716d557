"""Events of a profiler's trace; its labels, and substitutes for `label_units`' labels if they are missing.

FSDP2 labels its own work before and after a unit's forward, so the time in between is that forward. A unit's backward
begins in the same way and lasts until another unit's begins. The rest of what autograd's engine runs without a break
is labelled as the root's backward. On a GPU the engine has a thread of its own, where nothing else runs: there a
backward also ends where the profiler's next step or an optimizer's step begins.
"""

import math
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from shardtrace.labels_to_spans import Label
from shardtrace.range_labels import ROOT, meaning

_ENGINE = "autograd::engine::evaluate_function"
_BREAKS = ("ProfilerStep#", "Optimizer.step#")
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


@dataclass(frozen=True, slots=True)
class Event:
    """One complete event of a trace."""

    name: str
    category: str
    thread: Any
    start_s: float
    end_s: float
    args: dict

    @classmethod
    def of(cls, event: dict, shift_s: float) -> "Event":
        start_s = event["ts"] * 1e-6 + shift_s
        end_s = start_s + event.get("dur", 0) * 1e-6
        return cls(event["name"], event.get("cat", ""), event.get("tid"), start_s, end_s, event.get("args", {}))


def host_labels(events: list[Event]) -> dict[Any, list[Label]]:
    """Labels of each thread."""
    by_thread = defaultdict(list)
    for e in events:
        if e.category == "user_annotation" and meaning(e.name):
            by_thread[e.thread].append(Label(e.name, e.start_s, e.end_s))
    if not any(label.name.startswith("backward (") for some in by_thread.values() for label in some):
        ops = _by_thread(events)
        breaks = sorted(e.start_s for e in events if e.category == "user_annotation" and e.name.startswith(_BREAKS))
        for thread in [*by_thread, *(t for t in ops if t not in by_thread)]:
            by_thread[thread] += list(_stand_ins(ops[thread], by_thread[thread], breaks))
    return by_thread


def _by_thread(events: list[Event]) -> dict[Any, list[Event]]:
    by_thread = defaultdict(list)
    for e in events:
        if e.category == "cpu_op":
            by_thread[e.thread].append(e)
    return by_thread


def _stand_ins(ops: list[Event], labels: list[Label], breaks: list[float]) -> Iterator[Label]:
    labels = sorted(labels, key=lambda label: label.start_s)
    yield from _forwards(labels)
    for whole in _backward_passes(ops, breaks):
        yield whole
        yield from _backwards([label for label in labels if whole.start_s <= label.start_s < whole.end_s], whole.end_s)


def _forwards(labels: list[Label]) -> Iterator[Label]:
    opened: list[Label] = []
    for label in labels:
        if label.name.startswith("FSDP::pre_forward"):
            opened.append(label)
        elif label.name.startswith("FSDP::post_forward") and opened:
            before = opened.pop()
            yield Label(f"forward ({meaning(before.name)[1]})", before.end_s, label.start_s)


def _backwards(labels: list[Label], end_s: float) -> Iterator[Label]:
    entered = [label for label in labels if label.name.startswith("FSDP::pre_backward")]
    for label, following in pairwise([*entered, Label("", end_s, end_s)]):
        yield Label(f"backward ({meaning(label.name)[1]})", label.end_s, following.start_s)


def _backward_passes(ops: list[Event], breaks: list[float]) -> Iterator[Label]:
    """Yield one label for each run of the engine's functions with no other operation, and no break, between them."""
    outermost, end_s = [], -math.inf
    for op in sorted(ops, key=lambda e: (e.start_s, -e.end_s)):
        if op.start_s >= end_s:
            outermost.append(op)
            end_s = op.end_s
    kind_and_step = [(op.name.startswith(_ENGINE), bisect(breaks, op.start_s)) for op in outermost]
    for (is_engine, _), some in groupby(zip(kind_and_step, outermost, strict=True), key=lambda pair: pair[0]):
        run = [op for _, op in some]
        if is_engine:
            yield Label(f"backward ({ROOT})", run[0].start_s, run[-1].end_s)


def numel(event: Event, argument: int) -> int:
    """Elements of a tensor argument, or of all tensors in a list argument; 0 without record_shapes."""
    dims = event.args.get("Input Dims", [])[argument : argument + 1]
    types = event.args.get("Input type", [])[argument : argument + 1]
    if dims == [[]] and types != [] and types[0] in ("", "TensorList"):  # no tensor, or a list without shapes
        return 0
    shapes = dims[0] if dims and dims[0] and isinstance(dims[0][0], list) else dims
    return sum(math.prod(shape) for shape in shapes)


def element_bytes(dtype: str, unknown: int = 1) -> int:
    return _ELEMENT_BYTES.get(dtype.lower(), unknown)
