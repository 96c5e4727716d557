"""Lesson 24's programs: what the checker says of each, what is wrong on ranks, and what backward sends."""

from functools import cache

import pytest
import torch.distributed as dist
from lesson_answers import definitions

from shardcourse.experiments import typed_ranks

# name: whether the checker follows S(i), and a word of its refusal
WRONG = {
    "mean_of_means": (False, "Varying loss on axis dp"),
    "no_reduction": (False, "Partial type on axis dp"),
    "own_mean": (False, "Varying loss on axis tp"),
    "own_norm": (True, "Partial type on axis dp"),
    "no_leave": (True, "Partial type on axis tp"),
    "leave_to_r": (True, "Replicate loss on axis tp"),
    "without_enter": (True, "Invariant type on axis tp"),
}
REPAIRED = {"mean_of_all": False, "both_means": False, "right_norm": True, "leave_to_i": True, "feed_forward": True}
UNSEEN = {"wrong_divisor": False, "other_seeds": False, "own_norm": False}


@cache
def lesson() -> dict:
    return definitions("24_sharding_has_types.ipynb")


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_program_is_refused_with_its_axis(name):
    shards, words = WRONG[name]
    said = typed_ranks.check(lesson()[name], shards)
    assert said.startswith("refused: ") and words in said and len(said.splitlines()) == 2
    assert not dist.is_initialized()


@pytest.mark.parametrize(("name", "shards"), [*REPAIRED.items(), *UNSEEN.items()])
def test_a_program_is_accepted(name, shards):
    assert typed_ranks.check(lesson()[name], shards).startswith("accepted")


def test_a_forgotten_leave_is_refused_where_backward_needs_the_sum():
    said = typed_ranks.check(lesson()["no_leave"], shards=True)
    assert "all_reduce(tensor, tp, src=P, dst=R)" in said


def test_what_is_wrong_is_wrong_on_ranks_and_what_is_repaired_is_right():
    apart = typed_ranks.run({name: lesson()[name] for name in WRONG | REPAIRED | UNSEEN})
    assert all(apart[name] > 0.01 for name in WRONG | UNSEEN), apart
    assert all(apart[name] < 1e-12 for name in REPAIRED), apart
    assert apart["own_mean"] == pytest.approx(1) and apart["leave_to_r"] == pytest.approx(1)


def test_a_wrong_dimension_is_refused_where_the_checker_follows_shards():
    spmd = typed_ranks.spmd

    def added(mesh):
        a, b = (typed_ranks.put(mesh, (4, 4), dp=spmd.S(i), tp=spmd.R) for i in range(2))
        return a + b.reshape(a.shape)

    assert typed_ranks.check(added).startswith("accepted")
    assert typed_ranks.check(added, shards=True).startswith("refused")


def test_backward_sends_what_the_types_say():
    moves = ("PR", "PI", "VR", "PV", "IR")
    found = [backward for _, backward in typed_ranks.messages(moves)]
    assert found == ["all_reduce", "nothing", "reduce_scatter", "all_gather", "all_reduce"]


def test_the_lessons_rules_are_the_packages_and_another_one_is_found():
    combine, nonlinear = lesson()["combine"], lesson()["nonlinear"]
    assert typed_ranks.package_rules(combine, nonlinear).startswith("36 of 36")
    assert typed_ranks.package_rules(combine, lambda a: a).startswith("35 of 36")


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(typed_ranks, "spmd", None)
    assert typed_ranks.check(lesson()["mean_of_all"]) == "not checked"
    assert "pip install" in typed_ranks.package_rules(None, None)
