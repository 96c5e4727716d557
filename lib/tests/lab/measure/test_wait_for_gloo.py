"""Who measures memory waits for gloo's workers: while one runs, and no longer than that, or than the bound."""

import ctypes
import hashlib
import threading
import time

import pytest
from deadlines import deadline_s

from shardlab.measure import memory_events_outside_dispatch

SET_NAME = 15  # PR_SET_NAME

pytestmark = pytest.mark.skipif(
    not memory_events_outside_dispatch.THREADS.exists(), reason="threads' states are read in /proc"
)


def waited_s(name: str, computing_s: float) -> float:
    """How long it is waited for a thread that computes first, and then is idle until nobody waits for it any more."""

    def work() -> None:
        ctypes.CDLL(None).prctl(SET_NAME, name.encode(), 0, 0, 0)
        began.set()
        while time.monotonic() < begin_s + computing_s and not over.is_set():
            hashlib.sha256(bytes(1_000_000))  # without the GIL, as gloo
        over.wait()

    began, over, begin_s = threading.Event(), threading.Event(), time.monotonic()
    thread = threading.Thread(target=work)
    thread.start()
    began.wait()
    try:
        memory_events_outside_dispatch.wait_until_idle()
        return time.monotonic() - begin_s
    finally:
        over.set()
        thread.join()


FOR_EVER_S = 1e6


def test_as_long_as_a_worker_runs(monkeypatch):
    monkeypatch.setattr(memory_events_outside_dispatch, "AT_MOST_S", bound_s := deadline_s(5))
    assert 0.3 <= waited_s("pt_gloo_runloop", computing_s=0.3) < bound_s, "it is idle then, and still there"
    assert waited_s("python", computing_s=FOR_EVER_S) < bound_s, "another thread"


def test_not_for_ever(monkeypatch):
    monkeypatch.setattr(memory_events_outside_dispatch, "AT_MOST_S", 0.2)
    assert waited_s("pt_gloo_runloop", computing_s=FOR_EVER_S) >= 0.2
