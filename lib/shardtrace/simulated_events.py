"""Interface through which a simulated network gives `record_timeline` the times of its messages.

torch.profiler knows when the host handed a message over. A simulated network knows more: when the last rank had
arrived, when the links were free, and when the message finished.
"""

from contextlib import AbstractContextManager
from typing import Protocol

import torch.distributed as dist

from shardtrace.labels_to_spans import Queued, Sent


class EventSource(Protocol):
    backend: str  # torch.distributed backend of the process groups that this source answers for

    def sent_since(self, start_s: float) -> list[Sent]:
        """Messages of this rank that were issued since `start_s` (`time.monotonic()`) and have finished."""

    def queued(self) -> AbstractContextManager[list[Queued]]:
        """Collect computation that is queued inside the block, for hosts that run ahead of their device."""


_plugged_in: EventSource | None = None


def plug_in(source: EventSource) -> None:
    """Use `source` from now on, on this rank."""
    global _plugged_in
    _plugged_in = source


def event_source() -> EventSource | None:
    """The plugged-in source, or None; with a process group, only if the group has the source's backend."""
    if _plugged_in and dist.is_initialized() and dist.get_backend() != _plugged_in.backend:
        return None
    return _plugged_in
