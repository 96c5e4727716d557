"""Who measures memory waits for gloo's workers: while one runs, and no longer than that, or than the bound."""

import ctypes
import hashlib
import threading
import time

import pytest

from shardlab.measure import gloo_threads

SET_NAME = 15  # PR_SET_NAME

pytestmark = pytest.mark.skipif(not gloo_threads.THREADS.exists(), reason="threads' states are read in /proc")


def waited_s(name: str, computing_s: float, asleep_s: float) -> float:
    """How long it is waited for a thread that computes first, sleeps then, and ends."""

    def work() -> None:
        ctypes.CDLL(None).prctl(SET_NAME, name.encode(), 0, 0, 0)
        began.set()
        while time.monotonic() < begin_s + computing_s:
            hashlib.sha256(bytes(1_000_000))  # without the GIL, as gloo
        time.sleep(asleep_s)

    began, begin_s = threading.Event(), time.monotonic()
    thread = threading.Thread(target=work)
    thread.start()
    began.wait()
    gloo_threads.wait_until_idle()
    waited = time.monotonic() - begin_s
    thread.join()
    return waited


def test_as_long_as_a_worker_runs(monkeypatch):
    monkeypatch.setattr(gloo_threads, "AT_MOST_S", 10.0)
    assert 0.3 <= waited_s("pt_gloo_runloop", computing_s=0.3, asleep_s=4.0) < 3.0
    assert waited_s("python", computing_s=4.0, asleep_s=0) < 3.0, "another thread"


def test_not_for_ever(monkeypatch):
    monkeypatch.setattr(gloo_threads, "AT_MOST_S", 0.2)
    assert 0.2 <= waited_s("pt_gloo_runloop", computing_s=4.0, asleep_s=0) < 3.0
