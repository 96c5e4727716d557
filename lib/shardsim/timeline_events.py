"""Events of a simulated network for `shardtrace.record_timeline`: messages sent, and computation queued."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from shardsim import slept_computation, transfers
from shardsim.cpu_streams import current_stream, reached_s
from shardtrace.labels_to_spans import Queued, Sent


class SimulatedEvents:
    """`EventSource` of the backend "simulated"."""

    backend = "simulated"

    def sent_since(self, start_s: float) -> list[Sent]:
        since = (c for c in transfers.collectives() if c.issued_s >= start_s)
        return [Sent(c.kind, c.bytes, c.issued_s, c.ready_s, c.started_s, c.finished_s) for c in since]

    @contextmanager
    def queued(self) -> Iterator[list[Queued]]:
        """Record slept computation: under `cpu_streams.run_ahead` a label only says when the host asked for it."""
        found, original = [], slept_computation.compute

        def compute(seconds: float, *args) -> None:
            asked_s, started_s = time.monotonic(), reached_s()
            original(seconds, *args)
            if not current_stream().blocks:
                found.append(Queued(asked_s, started_s, current_stream().moment.clock_s))

        slept_computation.compute = compute
        try:
            yield found
        finally:
            slept_computation.compute = original
