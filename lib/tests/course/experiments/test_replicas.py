"""A replica that is killed is started again, when the others have taken some steps."""

import os
import signal
import time

import torch.distributed as dist

from shardcourse.experiments.replicas import group_of, run_replicas


def body(store, me, came_back):
    if me == 1 and not came_back:
        store.add("steps", 1)
        os.kill(os.getpid(), signal.SIGKILL)
    if came_back:
        return "back", store.add("steps", 0)
    for _ in range(8):
        store.add("steps", 1)
        time.sleep(0.05)
    return "stayed", me


def lonely(store, me, came_back):
    """Replica 1 leaves inside a group: the other's call fails, and does not hang."""
    import torch

    if came_back:
        return "back"
    group = group_of(store, "first", me, 2)
    group.allreduce([torch.ones(1)]).wait()
    store.add("steps", 1)
    if me == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        group.allreduce([torch.ones(1)], dist.ReduceOp.SUM).wait()
    except RuntimeError:
        return "seen"
    return "not seen"


def test_the_killed_replica_comes_back_later():
    found, code = run_replicas(body, 2, dies=1, back_after=3)
    assert code == -signal.SIGKILL
    assert found[0] == ("stayed", 0) and found[1][0] == "back" and found[1][1] >= 4


def test_a_lost_peer_is_an_error():
    assert run_replicas(lonely, 2, dies=1, back_after=0)[0] == ["seen", "back"]
