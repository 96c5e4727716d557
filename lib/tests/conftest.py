"""What several test files share."""

import gc
import tempfile
import time

import psutil
import pytest

from shardlab import launch


@pytest.fixture
def no_leaks(tmp_path, monkeypatch):
    """However the launches inside end, they leave no process, port, file or descriptor behind.

    The forkserver and multiprocessing's resource tracker are there before and may stay.
    """
    launch(int, 1)
    private = tmp_path / "temporary"
    private.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(private))
    processes, ports, descriptors = _held()
    yield
    processes_after, ports_after, descriptors_after = _held()
    assert processes_after <= processes
    assert ports_after <= ports
    assert descriptors_after <= descriptors
    assert not list(private.iterdir())


def _held() -> tuple[set[int], set[int], int]:
    """Descendants, listening ports, number of open descriptors."""
    gc.collect()  # an exception and its traceback keep each other, and through the frames what a launch held
    me = psutil.Process()
    ports = {c.laddr.port for c in me.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    return {p.pid for p in me.children(recursive=True)}, ports, me.num_fds()


@pytest.fixture
def all_gone():
    """all_gone(pids): none of these processes, whoever their parent is, runs any more; waits a few seconds for it."""

    def wait(pids, within_s: float = 15.0) -> bool:
        deadline = time.monotonic() + within_s
        while any(map(_runs, pids)):
            if time.monotonic() > deadline:
                return False
        return True

    return wait


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
