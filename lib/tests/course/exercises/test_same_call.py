"""The check of lesson 13a's exercise: it accepts the lesson's answer, and says what is wrong with wrong ones."""

from collections import Counter

import pytest
import torch.distributed as dist
from deadlines import deadline_s

from shardcourse.exercises.same_call import problems


def answer(kind, x, call):
    mine = f"{kind} {x.dtype} {list(x.shape)}"
    calls = [None] * dist.get_world_size()
    dist.all_gather_object(calls, mine)
    (usual, votes), *others = Counter(calls).most_common()
    if others:
        odd = [f"rank {rank}: {c}" for rank, c in enumerate(calls) if c != usual]
        raise RuntimeError(f"{votes} of {len(calls)} ranks call {usual}, but {', '.join(odd)}")
    return call()


def compares_kinds_only(kind, x, call):
    kinds = [None] * dist.get_world_size()
    dist.all_gather_object(kinds, kind)
    if len(set(kinds)) > 1:
        raise RuntimeError(f"rank {[k != 'all_reduce' for k in kinds].index(True)} differs: {kinds}")
    return call()


def tells_no_rank(kind, x, call):
    calls = [None] * dist.get_world_size()
    dist.all_gather_object(calls, f"{kind} {x.dtype} {list(x.shape)}")
    if len(set(calls)) > 1:
        raise RuntimeError("the ranks call different things")
    return call()


def raises_on_the_odd_rank_only(kind, x, call):
    calls = [None] * dist.get_world_size()
    dist.all_gather_object(calls, f"{kind} {x.dtype} {list(x.shape)}")
    usual = Counter(calls).most_common(1)[0][0]
    if calls[dist.get_rank()] != usual:
        raise RuntimeError(f"rank {dist.get_rank()} differs: {calls[dist.get_rank()]}")
    return call()


def forgets_the_call(kind, x, call):
    pass


@pytest.mark.parametrize(
    ("checked", "said"),
    [
        (answer, ""),
        (compares_kinds_only, "rank 1 has another shape"),
        (tells_no_rank, "rank 2 calls broadcast: the error on rank 0 does not name rank 2 and its broadcast"),
        (raises_on_the_odd_rank_only, "rank 2 calls broadcast"),
        (forgets_the_call, "rank 0 should hold the sum"),
    ],
)
def test_the_check_says_what_is_wrong(checked, said):
    found = problems(checked, timeout_s=deadline_s(5))
    assert said in found[0] if said else found == []
