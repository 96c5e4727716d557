"""The check of lesson 22's exercise: it accepts the answer, and names what is wrong with other votes."""

import pytest
import torch
import torch.distributed as dist
from lesson_answers import answer as folded
from lesson_answers import defined

from shardcourse.exercises.corrupt_replica import check_suspects


def fingerprint(tensors):
    total = torch.zeros(1, dtype=torch.int64)
    for t in tensors:
        bits = t.detach().contiguous().view(torch.int32).flatten().long()
        total = 31 * total + (bits * (2 * torch.arange(len(bits)) + 1)).sum()
    return total


NAMES = {"torch": torch, "dist": dist}
CODE = folded("22_slow_links_and_lost_nodes.ipynb", "def my_suspects")


def answer(fingerprint=fingerprint):
    return defined(CODE, "my_suspects", fingerprint=fingerprint, **NAMES)


def prints_of(model):
    prints = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(prints, fingerprint(p.to_local() for p in model.parameters()))
    return [p.item() for p in prints]


def nobody(model, mesh):
    return []


def one_vote_of_all(model, mesh):
    prints = prints_of(model)
    usual = max(prints, key=prints.count)
    return [rank for rank, value in enumerate(prints) if value != usual]


def against_replica_0(model, mesh):
    prints = prints_of(model)
    return sorted(r for ranks in mesh.mesh.T.tolist() for r in ranks if prints[r] != prints[ranks[0]])


def only_my_shard(model, mesh):
    prints, mine = prints_of(model), dist.get_rank()
    [ranks] = [ranks for ranks in mesh.mesh.T.tolist() if mine in ranks]
    values = [prints[r] for r in ranks]
    return [r for r in ranks if prints[r] != max(values, key=values.count)]


def without_a_tie(model, mesh):
    prints, found = prints_of(model), []
    for ranks in mesh.mesh.T.tolist():
        values = [prints[r] for r in ranks]
        found += [r for r in ranks if prints[r] != max(values, key=values.count)]
    return sorted(found)


def whole_weights(model, mesh):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, [p.to_local().detach() for p in model.parameters()])
    return answer()(model, mesh)


def plain_sum(tensors):
    return sum(t.detach().contiguous().view(torch.int32).long().sum() for t in tensors).reshape(1)


def of_numbers(tensors):
    """A sum of numbers with their places, in float64: it does not see the sign of a zero."""
    total = sum((t.detach().double().flatten() * (1 + torch.arange(t.numel()))).sum() for t in tensors)
    return (total * 1e9).long().reshape(1)


WRONG = {
    "nobody": (nobody, "Rank 3 has a flipped bit: your list is [], not [3]. Think: is every bit"),
    "one vote of all": (one_vote_of_all, "Nothing is corrupt: your list is [1, 3, 5], not []. Think: ranks of one"),
    "against replica 0": (
        against_replica_0,
        "Rank 0 has a flipped bit: your list is [2, 4], not [0]. Think: replica 0",
    ),
    "only my shard": (only_my_shard, "Rank 3 has a flipped bit: rank 0 returns [], rank 1 returns [3]. All ranks need"),
    "without a tie": (without_a_tie, "Ranks 1, 3 and 5 all differ: your list is [3, 5], not [1, 3, 5]. Think: no"),
    "whole weights": (whole_weights, "Your list is right, but a rank sends"),
    "plain sum": (answer(plain_sum), "Rank 4 has two exchanged weights: your list is [], not [4]. Think: a plain sum"),
    "numbers": (answer(of_numbers), "Rank 2 has a zero with a sign: your list is [], not [2]. Think: -0.0 equals"),
}


def test_the_answer_is_right():
    assert check_suspects(answer()) == "Right: every corrupt rank is named, by all ranks, for some bytes."


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_named(wrong):
    suspects, words = WRONG[wrong]
    assert check_suspects(suspects).startswith(words)
