"""A launch's deadline begins when every rank is ready; opening devices and connecting has a deadline of its own.

On a GPU node that takes seconds: a CUDA context, NCCL's connections. Networks and cards that are slow stand in.
"""

import threading

import pytest
import torch.distributed as dist
from stand_ins import SlowCards, SlowFirstCollective, SlowNetwork

from shardlab import LaunchError, launch
from shardlab.launch import rank_main
from shardlab.launch.flight_recorder import collectives
from shardlab.launch.job import Job
from shardlab.launch.pickling import dumps
from shardlab.launch.rank_main import Settings
from shardlab.launch.rank_process import RankProcess

SLOW_S = 1.5
SHORT_S = 1.0  # less than the set-up takes, and enough for what is asked of the ranks


def launch_on_cards(fn, world_size, network, timeout_s):
    """`launch(fn, world_size, device="cuda")` as on a machine whose cards are stand-ins."""
    ranks = [RankProcess(r, show=False) for r in range(world_size)]
    job = Job(dumps((fn, ())), ranks, Settings("gloo", network.device, network, 1, 60.0))
    try:
        job.start()
        return job.results(timeout_s)
    finally:
        job.kill()


def called_before():
    return [c.kind for c in collectives(last=10)]


def test_a_slow_set_up_does_not_count():
    assert launch(dist.get_rank, 3, device="cpu", network=SlowNetwork(SLOW_S, rank=1), timeout_s=SHORT_S) == [0, 1, 2]


@pytest.mark.parametrize("slow", [SlowCards, SlowFirstCollective])
def test_a_slow_card_does_not_count(slow):
    """Its first collective, which makes NCCL's connections, is over when the function begins."""
    assert launch_on_cards(called_before, 3, slow(SLOW_S, rank=2), SHORT_S) == 3 * [["all_reduce"]]


def test_ranks_on_cpus_send_nothing_first():
    assert launch(called_before, 2, device="cpu") == [[], []]


@pytest.mark.parametrize(
    ("slow", "words"),
    [
        (SlowNetwork, "it did not get as far as opening its device"),
        (SlowCards, "it was opening its device"),
        (SlowFirstCollective, "it was in its first collective"),
    ],
)
def test_who_does_not_get_ready_is_named_with_what_it_was_doing(slow, words, monkeypatch):
    """The others wait for it, so that no rank is ready."""
    monkeypatch.setattr(rank_main, "SETUP_S", SHORT_S)
    with pytest.raises(LaunchError, match=f"rank 1 of 3 did not get ready in {SHORT_S:g} s: {words}") as caught:
        launch_on_cards(dist.get_rank, 3, slow(60.0, rank=1), timeout_s=30.0)
    assert caught.value.rank == 1 and caught.value.timed_out
    assert "time.sleep(self.seconds)" in str(caught.value)
    assert "no result" not in str(caught.value)


def test_a_function_that_hangs_meets_its_own_deadline():
    with pytest.raises(LaunchError, match=f"no result from ranks 0, 1 within {SHORT_S:g} s"):
        launch(lambda: threading.Event().wait(), 2, device="cpu", timeout_s=SHORT_S)
