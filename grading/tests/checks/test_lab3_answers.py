"""Answers to lab 3 that are refused or shown in one line: finished parts of the library, and things of another type."""

import numpy as np
import pytest
import torch
from submissions import judge_replies

from grading.checks.lab3_zero import judge_owners, on_ranks
from grading.checks.refused_course_code import NotAllowed, refuse_finished_parts


@pytest.mark.parametrize(
    "source, used",
    [
        ("from grading.checks.lab3_zero.owner_rule import owned as f", "owner_rule.owned"),
        ("from shardlab.zero import ShardedDataParallel as f", "ShardedDataParallel"),
        ("from grading.checks.lab3_zero import owner_rule\ndef f(): return owner_rule.owned", "zero.owner_rule"),
        ("def f():\n from shardlab.zero import ShardedDataParallel\n return ShardedDataParallel", "shardlab.zero"),
        ("def f():\n import shardlab.zero as z\n return z", "shardlab.zero"),
        ("import shardlab\nclass f:\n def step(self): return shardlab.zero", "shardlab"),
        ("from shardlab.zero import ShardedDataParallel\nclass f(ShardedDataParallel): pass", "ShardedDataParallel"),
        ("from shardlab import zero\ndef g(): return zero\nclass f:\n def step(self): return g()", "shardlab.zero"),
        ("import functools\nfrom shardlab import zero\nf = functools.partial(lambda z: z, zero)", "shardlab.zero"),
        ("from shardlab.ddp import assign_buckets\ndef f(): return assign_buckets", ""),
        ("from shardlab.text_batches import batch\nclass f:\n def step(self): return self.batch", ""),
        ("def f():\n from shardlab.ddp import assign_buckets\n return assign_buckets", ""),
    ],
)
def test_only_assign_buckets_is_not_refused(source, used):
    names = {"__name__": "submission"}
    exec(source, names)
    if not used:
        return refuse_finished_parts(names["f"], on_ranks.RULE)
    with pytest.raises(NotAllowed, match=used):
        refuse_finished_parts(names["f"], on_ranks.RULE)


@pytest.mark.parametrize("answer", [None, 3.0, "owned", [], {"sizes": 1}])
def test_what_cannot_be_called_is_refused_in_one_line(answer):
    with pytest.raises(TypeError, match="run the cell that defines"):
        refuse_finished_parts(answer, on_ranks.RULE)


@pytest.mark.parametrize(
    "returned", [None, 3, "(0, 0, 1)", ((0, 0, 1),), [[0, 0, 1]], [(0, 0)], [(0, 0.0, 1)], [("a", 0, 1)], {0: 1}, int]
)
def test_what_is_no_list_of_tuples_of_ints_is_shown(returned):
    instances = judge_owners.drawn(1)
    replies = on_ranks.owned(lambda sizes, shares, rank: returned, instances)
    verdict = judge_replies("lab3.shards", {"owned": [replies]})
    assert (verdict.points, "no list of tuples of three ints" in verdict.cause) == (0, True)


def test_ints_of_numpy_and_torch_are_ints_and_huge_or_negative_ones_no_piece():
    for kind in (int, np.int64, torch.tensor):
        assert on_ranks._pieces([tuple(map(kind, (0, 1, 5)))]) == [[0, 1, 5]]
    for piece in ((10**30, 0, 1), (0, -1, 1), (-1, 0, 1), (0, 0, 10**30), (0, 1, 1)):
        replies = [[[list(piece)] for _ in i["shares"]] for i in judge_owners.drawn(1)]
        verdict = judge_replies("lab3.shards", {"owned": [replies]})
        assert (verdict.points, "which is empty or not there" in verdict.cause) == (0, True)
