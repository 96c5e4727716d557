"""Lab 7's class before the referee: right ones in different styles, and every wrong one that a class hands in; and the
evidence that its first check makes up."""

import pytest
from submissions import checks_that_nothing_needs, class_of, concerned, surprises_of, try_sample

from grading.checks.lab7_debug.hang_evidence import KINDS, MESHES, hang
from grading.samples.sample import samples

ONE_RANK = ("lab7.diagnose",)  # checks whose drills need no other
LAB = "lab7_debug"


@pytest.mark.parametrize("sample", class_of(LAB))
def test_sample_gets_its_points_and_its_cause(sample, answers, referees, monkeypatch):
    monkeypatch.setattr("grading.judge.session.SHORTEST_DEADLINE_S", 6.0)  # for the one that hangs
    try_sample(sample, answers(sample), referees(LAB))


@pytest.mark.parametrize("sample", concerned(LAB, ONE_RANK))
def test_sample_gets_its_points_where_one_rank_is_asked(sample, answers, unboxed):
    assert surprises_of(sample, answers(sample), unboxed(LAB), ONE_RANK) == []


def test_every_check_stops_a_sample_that_no_other_check_stops():
    assert checks_that_nothing_needs(LAB) == set()


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_hang_made_up_is_one_and_its_records_tell_whose(kind, mesh):
    """Somebody waits; whoever waits lacks a peer, or one who says the same; and the fault is in sight."""
    for seed in range(40):
        h = hang(seed, kind, mesh)
        rank, axis, seq = h.fault
        calls = [{(a, n): call for a, _, n, call, _ in log} for log in h.records]
        waiting = [e for log in h.records for e in log if not e[4]]
        assert waiting
        for a, members, n, _, _ in waiting:
            first = min(e[2] for e in waiting if e[:2] == [a, members])
            assert n > first or len({calls[m].get((a, n)) for m in members}) > 1
        members = next(e[1] for e in waiting if e[0] == axis and e[2] == seq and rank in e[1])
        others = {calls[m].get((axis, seq)) for m in members if m != rank} - {None}
        assert len(others) == 1
        assert ((axis, seq) in calls[rank]) == (kind == "leaves out")
        assert calls[rank].get((axis, seq)) not in others


def test_the_solutions_experts_are_balanced_on_ranks(answers, unboxed):
    right = next(s for s in samples(LAB) if s.name == "right")
    assert unboxed(LAB).judge(answers(right), only="lab7.experts")[0].passed
