"""Live ranks on stand-in GPUs: a cell has ended when the device has, and NCCL's record tells what is pending."""

import time

import pytest
from nccl_over_gloo import StandInGpus

from shardlive import RankError, Ranks


@pytest.fixture
def ranks():
    live = Ranks(3, device="cpu", network=StandInGpus())
    yield live
    live.end()


def shown(ranks: Ranks, source: str, of=None) -> list[str]:
    lines: list[str] = []
    ranks.run(source, of, show=lines.append)
    return lines


def test_a_cell_has_ended_when_the_device_has(ranks):
    shown(ranks, "x = torch.ones(3, device=device)\ndist.all_reduce(x)\nassert str(device) == 'gpu:0'")
    cell = "import time\ntime.sleep(0.7 * rank)\nwork = dist.all_reduce(x, async_op=True)\nreturned = time.monotonic();"
    shown(ranks, cell)  # the call returns at once; the device waits for rank 2
    ended = time.monotonic()
    returned = ranks.pull("returned")
    assert ended - returned[0] > 1.2
    assert ranks.pull("work.is_completed()") == [True] * 3
    assert shown(ranks, "work.wait(); x") == ["[every rank] tensor [3] float32: 9, 9, 9"]


def test_what_the_device_waits_in_is_pending(ranks):
    [said] = shown(ranks, "x = torch.ones(3, device=device)\ndist.all_reduce(x)", [0, 2])
    assert said == (
        "ranks 0, 2 wait in all_reduce Float[3], the end of the cell, for rank 1. "
        "Pending: run the same call on rank 1, and it ends."
    )
    assert shown(ranks, "x = torch.ones(3, device=device)\ndist.all_reduce(x)", [1]) == []
    assert ranks.pending == ""
    assert shown(ranks, "x.sum().item()") == ["[every rank] 9.0"]


def test_a_value_that_the_host_waits_for_is_pending(ranks):
    [said] = shown(ranks, "x = torch.ones(1, device=device)\ndist.all_reduce(x)\nx.item()", [0])
    assert "rank 0 waits in all_reduce Float[1], line 3: x.item(), for ranks 1, 2. Pending" in said


def test_a_call_that_the_device_has_not_come_to_is_not_pending(ranks):
    """NCCL records it as "scheduled": the device still computes what came before."""
    shown(ranks, "import os, threading\nos.environ['TORCH_NCCL_ENABLE_TIMING'] = '0'  # none is recorded as started")
    comes = "threading.Timer(1.5, os.environ.update, [{'TORCH_NCCL_ENABLE_TIMING': '1'}]).start()\n"
    began = time.monotonic()
    [said] = shown(ranks, comes + "x = torch.ones(3, device=device)\ndist.all_reduce(x)", [0])
    assert "Pending" in said and time.monotonic() - began > 1.5


def test_who_has_called_something_else_is_named(ranks):
    x = "x = torch.ones(3, device=device)\n"
    [said] = shown(ranks, x + "dist.all_reduce(x) if rank else dist.broadcast(x, 0)", [0, 1])
    assert said.startswith("rank 0 called broadcast Float[3], rank 1 called all_reduce Float[3]: ")
    with pytest.raises(RankError, match="not everything was over"):
        ranks.stop()
