"""Note when a device reaches a moment of the host's program, on the host's clock.

On a GPU the host runs ahead: a gradient's hook is called when the kernels before it are queued, and a collective that
blocks the stream does not block the host (ProcessGroupNCCL's synchronous calls, and `Work.wait`). So a moment there is
a CUDA event on the current stream, which completes when the device gets there.
"""

import time

import torch


class DeviceClock:
    """Clock of one rank's device. Its moments are events on a GPU, and times on a CPU, which is the host itself."""

    def __init__(self, device: torch.device) -> None:
        self._event = events_of(device)
        if self._event:
            self._start = self._event(enable_timing=True)
            self._start.record()
            self._start.synchronize()
        self._start_s = time.time()

    def now(self):
        """Return the moment at which the device will have done what is queued on the current stream so far."""
        if not self._event:
            return time.time()
        moment = self._event(enable_timing=True)
        moment.record()
        return moment

    def seconds(self, moment) -> float:
        """Wait until the device has reached this moment of `now`; return when that was, in seconds since the epoch."""
        if not self._event:
            return moment
        moment.synchronize()
        return self._start_s + self._start.elapsed_time(moment) / 1e3


def events_of(device: torch.device) -> type | None:
    """The class of events on the device's streams; None if the device has none."""
    return torch.cuda.Event if device.type == "cuda" else None
