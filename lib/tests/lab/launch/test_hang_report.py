"""The report of the last collectives: by hand, where every answer is known, and in the reports of jobs that hang."""

import re
import time

import pytest
import torch
import torch.distributed as dist
from deadlines import deadline_s

from shardlab import LaunchError, launch
from shardlab.launch import flight_recorder
from shardlab.launch.flight_recorder import Collective
from shardlab.launch.hang_report import stuck_collectives
from shardsim import simulated

WORLD = (0, 1, 2, 3)


def called(seq: int, state: str = "finished", kind: str = "all_reduce", group: str = "0", members=WORLD) -> Collective:
    where = f"train.py:{seq} in step"
    return Collective(seq, group, kind, 32, 32, "Float", ((8,),), 0.0, where, state, tuple(members))


def logs(**changes) -> dict[int, list[Collective]]:
    """Four ranks, each through with collectives 1 to 6, but for those in `changes`: rank2=[...]."""
    done = [called(seq) for seq in range(1, 7)]
    return {rank: changes.get(f"rank{rank}", done) for rank in WORLD}


def row(text: str, seq: int) -> str:
    (found,) = [line for line in text.splitlines() if line.lstrip().startswith(f"#{seq} ")]
    return " ".join(found.split())


def test_nothing_to_tell():
    assert stuck_collectives(logs()) == ""
    assert stuck_collectives({}) == ""
    assert stuck_collectives({0: [], 1: []}) == ""


def test_one_rank_is_missing():
    in_7 = [called(seq) for seq in range(1, 7)] + [called(7, "issued", "all_gather")]
    text = stuck_collectives(logs(rank0=in_7, rank1=in_7, rank3=in_7))
    assert text.splitlines()[0] == "the last collectives of group 0 (ranks 0-3):"
    assert row(text, 6) == "#6 all_reduce Float[8] 0-3"
    assert row(text, 7) == "#7 all_gather Float[8] 0, 1, 3 2 <- stuck"
    assert text.splitlines()[-1] == (
        "ranks 0, 1, 3 wait in #7 for rank 2. The last that rank 2 called is #6 all_reduce Float[8] at "
        "train.py:6 in step."
    )


def test_as_many_as_were_asked_for_and_the_one_that_is_stuck_among_them():
    for stuck_at in (1, 5, 20):
        waiting = [called(seq) for seq in range(1, stuck_at)]
        waiting += [called(seq, "issued") for seq in range(stuck_at, 21)]
        missing = [called(seq) for seq in range(1, stuck_at)]
        text = stuck_collectives({0: waiting, 1: missing}, last=4)
        rows = [line for line in text.splitlines() if line.lstrip().startswith("#")]
        assert len(rows) == 4
        assert [line.endswith("<- stuck") for line in rows].count(True) == 1
        assert row(text, stuck_at).endswith("0 1 <- stuck")


def test_a_rank_that_never_called_anything():
    text = stuck_collectives({0: [called(1, "started", members=(0, 1))], 1: []})
    assert text.endswith("rank 0 waits in #1 for rank 1. Rank 1 has called nothing in this group.")


def test_a_rank_that_was_not_asked():
    text = stuck_collectives({0: [called(1, "issued", members=(0, 1))]})
    assert "missing" in text.splitlines()[1]
    assert text.endswith("rank 0 waits in #1; nothing is known of rank 1")


def test_what_a_shorter_record_has_forgotten_is_not_missing():
    long, short = [called(seq) for seq in range(1, 9)], [called(seq) for seq in range(6, 9)]
    assert stuck_collectives({0: long, 1: short, 2: long, 3: long}) == ""


def test_ranks_that_call_different_things():
    mine, theirs = [called(1), called(2, "issued")], [called(1), called(2, "issued", "broadcast")]
    text = stuck_collectives(logs(rank0=mine, rank1=mine, rank2=theirs, rank3=mine))
    both = [" ".join(line.split()) for line in text.splitlines() if line.lstrip().startswith("#2")]
    assert both == ["#2 all_reduce Float[8] 0, 1, 3 <- stuck", "#2 broadcast Float[8] 2 <- stuck"]
    assert text.endswith("ranks 0-3 wait in #2, but called different collectives")


def test_all_are_in_it():
    text = stuck_collectives({0: [called(1, "issued", members=(0, 1))], 1: [called(1, "started", members=(0, 1))]})
    assert "every rank has called it" in text


def test_who_is_missing_in_one_group_may_wait_in_another():
    """Ranks 2 and 3 have a group of their own, where 3 hangs; 0 and 1 wait for both."""
    barrier = [called(1, "issued", "barrier")]
    pair = [called(1, "issued", group="2", members=(2, 3))]
    text = stuck_collectives({0: barrier, 1: barrier, 2: pair, 3: []})
    first, second, over_all = text.split("\n\n")
    assert "for ranks 2, 3. Rank 2 itself waits in #1 of group 2. Rank 3 has called nothing in this group." in first
    assert second.endswith("rank 2 waits in #1 for rank 3. Rank 3 has called nothing in this group.")
    assert over_all == "Over all groups: Look at rank 3: others wait for it, and it waits for nobody."


def test_messages_are_not_counted():
    assert stuck_collectives({0: [called(1, "issued", "send")], 1: []}) == ""


# ------------------------------------------------------------------------------------------------------- on real ranks


def states() -> list[str]:
    """Of a collective: when all other ranks have still to come, and afterwards.

    gloo tells the recorder that a collective is over a moment after it told whoever waits for it.
    """
    tensor, found = torch.zeros(8), []
    dist.barrier()
    if dist.get_rank() == 0:
        work = dist.all_reduce(tensor, async_op=True)
        found.append(flight_recorder.collectives(last=1)[0])
        dist.send(tensor, 1, tag=1)
        work.wait()
    else:
        dist.recv(torch.zeros(8), 0, tag=1)
        dist.all_reduce(tensor)
    dist.barrier()
    for _ in range(500):
        last = [c for c in flight_recorder.collectives() if c.kind == "all_reduce"][-1]
        if last.state == "finished":
            break
        time.sleep(0.01)
    return [(c.state, c.members) for c in [*found, last]]


@pytest.mark.parametrize("network", [None, "1 Gb/s, 50 us"])
def test_states_and_members(network):
    first, second = launch(states, 2, device="cpu", network=network and simulated(network))
    assert first == [("issued", (0, 1)), ("finished", (0, 1))]
    assert second == [("finished", (0, 1))]


def one_stays_away():
    for _ in range(3):
        dist.all_reduce(torch.zeros(8))
    if dist.get_rank() == 1:
        while True:
            pass
    dist.all_gather_into_tensor(torch.zeros(12), torch.zeros(4))


@pytest.mark.parametrize("network", [None, pytest.param("1 Gb/s, 50 us", marks=pytest.mark.night)])
def test_a_report_of_a_hang_has_it(network):
    with pytest.raises(LaunchError) as caught:
        on = {"network": network and simulated(network), "device": "cpu", "stream": False}
        launch(one_stays_away, 3, timeout_s=deadline_s(0.8), **on)
    message = str(caught.value)
    assert caught.value.rank == 1
    assert row(message, 4) == "#4 all_gather Float[4] 0, 2 1 <- stuck"
    assert re.search(r"ranks 0, 2 wait in #4 for rank 1\. The last that rank 1 called is #3 all_reduce", message)
