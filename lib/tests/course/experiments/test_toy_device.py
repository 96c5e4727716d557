"""The toy device of lesson 12: the host runs ahead of it, and `item` waits."""

import time

from shardcourse.experiments.toy_device import ToyDevice


def test_the_host_runs_ahead_until_it_asks():
    with ToyDevice() as device:
        began = time.perf_counter()
        for _ in range(3):
            device.launch(0.1)
        launched_s = time.perf_counter() - began
        device.item()
        done_s = time.perf_counter() - began
    assert launched_s < done_s and done_s >= 0.3
    assert 0.3 <= device.busy_s <= done_s


def test_nothing_to_wait_for():
    with ToyDevice() as device:
        device.item()
    assert device.busy_s == 0
