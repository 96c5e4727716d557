"""What all tests share: the state that they start from, their deadlines, and fixtures that look for leaks.

Nothing depends on how the runner was started: signals may be ignored, as under nohup, HOME may be read-only, and there
may be no terminal.
"""

import gc
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import cloudpickle
import psutil
import pytest
from deadlines import deadline_s, measured_unit_s

import shardcourse.lessons  # noqa: F401 before nbformat, which it makes faster to import
from shardlab import launch

TESTS = [Path(__file__).parent / folder / "tests" for folder in ("lib", "grading")]
TEST_S = 200  # a test's deadline


def known_state() -> None:
    """Undo what a runner may have changed: ignored signals, the umask, and a HOME that can't be written to."""
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)
    if not os.access(os.path.expanduser("~"), os.W_OK):
        os.environ["HOME"] = tempfile.mkdtemp(prefix="shardlab-home-")


known_state()


def pytest_configure(config) -> None:
    """Measure the unit of deadlines before workers start, and give every test its deadline."""
    measured_unit_s()
    if config.option.timeout is None:
        config.option.timeout = deadline_s(TEST_S)


def pytest_collection_modifyitems(items) -> None:
    """Ranks can't import the tests: their functions travel by value. A test's own deadline is scaled as all are."""
    for module in list(sys.modules.values()):
        if any(folder in Path(getattr(module, "__file__", None) or "/").parents for folder in TESTS):
            cloudpickle.register_pickle_by_value(module)
    for item in items:
        if own := item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(deadline_s(*own.args)), append=False)


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
        deadline = time.monotonic() + deadline_s(within_s)
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
