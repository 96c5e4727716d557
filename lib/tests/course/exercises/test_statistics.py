"""The exercise of lesson 0: its answer is right, and each wrong answer is told what is wrong."""

import pytest
import torch
import torch.distributed as dist

from shardcourse.exercises.statistics import check_statistics


def right(values):
    n, total = torch.tensor(float(values.numel())), values.sum()
    dist.all_reduce(n)
    dist.all_reduce(total)
    mean = total / n
    squares = ((values - mean) ** 2).sum()
    dist.all_reduce(squares)
    mine = values.max() if values.numel() else torch.tensor(-torch.inf)
    largest = mine.clone()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    owner = torch.tensor(dist.get_rank() if mine == largest else dist.get_world_size())
    dist.all_reduce(owner, op=dist.ReduceOp.MIN)
    return mean.item(), (squares / n).sqrt().item(), largest.item(), owner.item()


def mean_of_means(values):
    mean = torch.tensor([values.mean() if values.numel() else 0.0, float(values.numel() > 0)])
    dist.all_reduce(mean)
    return (mean[0] / mean[1]).item(), *right(values)[1:]


def own_mean(values):
    return values.mean().item(), *right(values)[1:]


def over_the_ranks(values):
    mean, *others = right(values)
    return mean * 20 / 4, *others


def about_its_own_mean(values):
    mean, _, *others = right(values)
    squares = ((values - values.mean()) ** 2).sum() if values.numel() else torch.zeros(())
    dist.all_reduce(squares)
    return mean, (squares / 20).sqrt().item(), *others


def variance(values):
    mean, deviation, *others = right(values)
    return mean, deviation**2, *others


def highest_owner(values):
    return *right(values)[:3], 3


def fails_without_values(values):
    values.max()
    return right(values)


def only_with_values(values):
    return right(values) if values.numel() else (0.0, 0.0, 0.0, 0)


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (right, "Right, on every rank."),
        (lambda values: None, "Not written yet"),
        (lambda values: values.sum().item(), "must return four numbers"),
        (mean_of_means, "mean of the ranks' means"),
        (own_mean, "this rank's values alone"),
        (over_the_ranks, "divided by the number of ranks"),
        (about_its_own_mean, "distance from its own mean"),
        (variance, "It is the variance"),
        (highest_owner, "the owner is the lower rank"),
        (fails_without_values, "did not end: rank 1 of 4 raised"),
        (only_with_values, "did not end: rank 1 of 4 returned"),
    ],
)
def test_an_answer_is_told_what_is_wrong(fn, words):
    assert words in check_statistics(fn)
    assert words in check_statistics(fn, seed=7)
