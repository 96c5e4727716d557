"""Keep a host that runs ahead from asking for more whole parameters than the GPU has memory for.

The host queues an all_gather, and memory for it, long before the GPU computes with it.

Source: Zhao et al. 2023, section 3.4.2.
"""

from collections import deque

import torch

MAX_GATHERED = 2  # units whose parameters the host has asked for and the GPU not yet freed


class RateLimiter:
    """Hold the host back until the GPU has come past the unit before the last. On a CPU nothing runs ahead."""

    def __init__(self, device: torch.device) -> None:
        self._device = torch.get_device_module(device)
        self._freed: deque = deque()  # events on the computation's stream

    def freed(self) -> None:
        self._freed.append(self._device.Event())
        self._freed[-1].record(self._device.current_stream())

    def wait(self) -> None:
        if len(self._freed) >= MAX_GATHERED:
            self._freed.popleft().synchronize()
