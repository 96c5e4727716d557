"""Live ranks for the tests of this folder."""

import psutil
import pytest

from shardlive import Ranks


@pytest.fixture(scope="module")
def four():
    """Four ranks for tests that leave them whole."""
    with Ranks(4, device="cpu") as ranks:
        yield ranks


@pytest.fixture
def three():
    """Three ranks for tests that leave them waiting, or dead."""
    ranks = Ranks(3, device="cpu")
    processes = [psutil.Process(pid) for pid in ranks.pull("__import__('os').getpid()")]
    yield ranks
    ranks.end()
    assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)
