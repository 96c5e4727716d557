"""Record a timeline: what this rank does inside a block, and for which unit.

    with record_timeline(model) as recording:
        for _ in range(3):
            step()
    recording.timeline.exposed_s

A simulated network gives the times of its collectives itself, and recording is cheap: we note torch's and our labels
(see `range_labels`) as they begin and end. On a real network torch.profiler runs underneath, and `read_profile` reads
its trace. This costs far more, and a collective's span begins when this rank hands it over, not when the last rank has
arrived.

[Note: waits] A wait is cut in three. "slower rank": another rank has not asked for the collective yet. "link taken":
all ranks have, but the links carry another collective. From the collective's start, the wait is named after its kind.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import record_function

from shardtrace.labels_to_spans import Label, timeline
from shardtrace.range_labels import label_units
from shardtrace.read_profile import read_profile
from shardtrace.simulated_events import event_source
from shardtrace.timeline import Timeline


@dataclass
class Recording:
    """Recording of this rank; `timeline` is complete when the block has ended."""

    timeline: Timeline = field(default_factory=lambda: Timeline(_rank(), ()))


@contextmanager
def record_timeline(module: nn.Module) -> Iterator[Recording]:
    """Record what runs inside the block; `module` is the model as it is trained, with its wrappers.

    Only collectives that have finished when the block ends are recorded.
    """
    recording = Recording()
    source = event_source()
    if dist.is_initialized() and not source:
        with label_units(module), torch.profiler.profile(record_shapes=True) as profiler:
            yield recording
        recording.timeline = read_profile(profiler)
        return
    start_s = time.monotonic()
    with (
        label_units(module),
        _labels_written_down() as labels,
        source.queued() if source else nullcontext([]) as queued,
    ):
        yield recording
    recording.timeline = timeline(_rank(), labels, source.sent_since(start_s) if source else [], queued)


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


@contextmanager
def _labels_written_down() -> Iterator[list[Label]]:
    """Record every `record_function` of this thread, without the profiler and its cost."""
    me, opened, found = threading.get_ident(), [], []
    original_enter, original_exit = record_function.__enter__, record_function.__exit__

    def enter(label: record_function) -> record_function:
        if threading.get_ident() == me:
            opened.append((label, time.monotonic()))
        return original_enter(label) if torch.autograd._profiler_enabled() else label

    def exit(label: record_function, *error) -> None:
        if threading.get_ident() == me and any(label is one for one, _ in opened):
            while opened:  # also labels inside it that an exception left open
                last, start_s = opened.pop()
                found.append(Label(last.name, start_s, time.monotonic()))
                if last is label:
                    break
        if label.record is not None:
            original_exit(label, *error)

    record_function.__enter__, record_function.__exit__ = enter, exit
    try:
        yield found
    finally:
        record_function.__enter__, record_function.__exit__ = original_enter, original_exit
