"""Limit how many units a host that runs ahead may gather, so that the GPU does not run out of memory.

The host queues an all_gather and allocates its memory long before the GPU uses it.

Source: Zhao et al. 2023, section 3.4.2.
"""

from collections import deque

import torch

MAX_GATHERED = 2  # units that the host has gathered and the GPU has not freed yet


class RateLimiter:
    """Make the host wait until the GPU has finished the unit before the last. On a CPU the host never runs ahead."""

    def __init__(self, device: torch.device) -> None:
        self._device = torch.get_device_module(device)
        self._freed: deque = deque()  # events on the computation's stream

    def freed(self) -> None:
        self._freed.append(self._device.Event())
        self._freed[-1].record(self._device.current_stream())

    def wait(self) -> None:
        if len(self._freed) >= MAX_GATHERED:
            self._freed.popleft().synchronize()
