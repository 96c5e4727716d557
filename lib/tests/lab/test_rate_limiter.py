"""The host waits for the unit before the last, and for no later one."""

from types import SimpleNamespace

import torch

from shardlab.rate_limiter import RateLimiter


def test_the_host_waits_for_the_oldest_of_two():
    waited, made = [], []

    class Event:
        def __init__(self):
            made.append(self)

        def record(self, stream):
            pass

        def synchronize(self):
            waited.append(made.index(self))

    limiter = RateLimiter(torch.device("cpu"))
    limiter._device = SimpleNamespace(Event=Event, current_stream=lambda: None)
    limiter.wait()
    limiter.freed()
    limiter.wait()
    assert waited == []  # one unit may be gathered while another computes
    limiter.freed()
    limiter.wait()
    assert waited == [0]
    limiter.freed()
    limiter.wait()
    assert waited == [0, 1]
