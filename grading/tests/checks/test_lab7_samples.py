"""Lab 7's class before the referee: right ones in different styles, and every wrong one that a class hands in; and the
evidence that its first check makes up."""

import json
import math
from functools import partial
from types import SimpleNamespace

import pytest
from submissions import checks_that_nothing_needs, class_of, concerned, judge_replies, surprises_of, try_sample

from grading.boxes.rank_launcher_outside import CrewError
from grading.boxes.sandbox.kernel_counters import Seen
from grading.checks.lab7_debug import experts_training, hang_training, resume
from grading.checks.lab7_debug import hang as hang_judge
from grading.checks.lab7_debug.hang_evidence import KINDS, MESHES, hang
from grading.checks.lab7_debug.tools_on_ranks import SHARDED, WHOLE
from grading.samples import samples
from shardlab.tier import TIERS

MIB = 2**20
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


# The judges alone, on what ranks might reply


def falls_short(said: dict) -> dict:
    """Of those whose cause is to have these words, and who are to get so many points: who has others."""
    return {words: v.text() for words, (v, points) in said.items() if v.points != points or words not in v.cause}


def judged_memory(peak=16.0, growth=0, rank=3, seen=None, history=None, weights=1.0):
    """Of one rank: MiB at the peak, bytes that the run grows by, MiB that the system saw and nobody accounts for."""

    def reply(spoilt):
        most = int((peak if spoilt else 15.0) * MIB)
        return {
            "history": history if spoilt and history else [[3.0, 10.0], [2.5, 12.0]],
            "weights": {"all": [weights if spoilt else 1.0, 2.0]},
            "peak": {"gradients": most - 100, "parameters": 100},
            "moments": [],
            "after": [10**6, 2 * 10**6, 2 * 10**6, 2 * 10**6 + (growth if spoilt else 0)],
        }

    mine, due = [reply(r == rank) for r in range(4)], [reply(False)] * 4
    claimed = [sum(sum(r["peak"].values()) for r in replies) for replies in (mine, due)]
    looks = (
        (Seen(), Seen()) if seen is None else (Seen(10**9 + claimed[0] + int(4 * seen * MIB)), Seen(10**9 + claimed[1]))
    )
    return judge_replies(
        "lab7.memory", {"accumulation": mine, "seen": looks[0]}, {"accumulation": due, "seen": looks[1]}
    )


def test_memory_does_not_grow_and_stays_within_tomorrows_budget():
    for rank in range(4):
        assert judged_memory(growth=64 << 10, rank=rank).points == 4
        said = {
            "any budget ends some day": (judged_memory(growth=(64 << 10) + 1, rank=rank), 0),
            "are too much for tomorrow's cards": (judged_memory(peak=16.1, rank=rank), 2),
            "3.60 MiB more than need be": (judged_memory(peak=18.6, rank=rank), 2),
            "Of gradients there are": (judged_memory(peak=19.6, rank=rank), 0),
            f"rank {rank} reports a loss of 3.0045": (
                judged_memory(history=[[3.0045, 10.0], [2.5, 12.0]], rank=rank),
                0,
            ),
            "2 tokens predicted right in step 1": (judged_memory(history=[[3.0, 10.0], [2.5, 2.0]], rank=rank), 0),
            "reports 1 steps of 2": (judged_memory(history=[[3.0, 10.0]], rank=rank), 0),
            "the weights at the end are not": (judged_memory(weights=1.1, rank=rank), 0),
        }
        assert falls_short(said) == {}
    assert judged_memory(history=[[3.0027, 11.0], [2.5, 12.0]], weights=1.01).points == 4
    assert judged_memory(seen=1.99).points == 4
    assert falls_short({"the system saw": (judged_memory(seen=2.01), 0)}) == {}


def run_of(setting: dict) -> dict:
    """What a rank replies whose training is right and whose part of the validation is as large as the others'."""
    truth = hang_judge.truth_of(setting, 4)
    rounds = len(truth["validation"])
    passes = rounds * math.ceil(setting["n_documents"] / (4 * hang_training.BATCH_SIZE))
    rows = hang_training.N_STEPS * hang_training.SAMPLES + math.ceil(rounds * setting["n_documents"] / 4)
    return {**truth, "forwards": hang_training.N_STEPS + passes, "rows": rows}


@pytest.fixture
def trained(monkeypatch):
    """The truth is the judge's, too, and worked out once."""
    truth_of, found = hang_judge.truth_of, {}

    def once(setting, world_size):
        key = json.dumps([setting, world_size])
        found[key] = found.get(key) or truth_of(setting, world_size)
        return found[key]

    monkeypatch.setattr(hang_judge, "truth_of", once)
    settings = hang_judge._settings(SimpleNamespace(seed=1, tier=TIERS["cpu"]))
    return {name: run_of(setting) for name, setting in settings.items()}


def judged_hang(trained, run="batch", error=None, **other):
    """One rank of one run replies something else; or the run ends with an error."""

    def training(padded, **_):
        name = "batch" if padded else "documents"
        if name == run and error:
            raise error
        replies = [dict(trained[name]) for _ in range(4)]
        if name == run:
            replies[2] |= other
        return replies

    return judge_replies("lab7.hang", {"training": training})


def test_a_run_that_is_no_longer_the_same_training_costs_half(trained):
    assert judged_hang(trained).points == 4
    for run, one in trained.items():
        weights = {name: [1.002 * x for x in xs] for name, xs in one["weights"].items()}
        off = {step: loss * 1.0002 for step, loss in one["validation"].items()}
        said = {
            "an update is missing or altered": (judged_hang(trained, run, weights=weights), 2),
            "every rank returns its loss": (judged_hang(trained, run, validation={}), 2),
            "the ranks report different validation losses": (judged_hang(trained, run, validation=off), 2),
            "had to be skipped": (judged_hang(trained, run, skipped=[2, 5]), 2),
            "the documents are not shared out": (judged_hang(trained, run, forwards=one["forwards"] + 1), 2),
            "the validation ran on some copy": (judged_hang(trained, run, rows=0), 2),
            "fails: it raised": (judged_hang(trained, run, CrewError("it raised")), 2),
            "still hangs: no result": (judged_hang(trained, run, CrewError("no result", timed_out=True)), 2),
        }
        assert falls_short(said) == {}
        nearly = {name: [1.0009 * x for x in xs] for name, xs in one["weights"].items()}
        assert judged_hang(trained, run, weights=nearly).points == 4


def judged_search(found=lambda altered: sorted({a[0] for a in altered}), n_bytes=512 * 10, rank=1):
    """One rank's answer; the others find what there is."""

    def search(altered, **_):
        right = sorted({a[0] for a in altered})
        replies = [{"found": right, "bytes": 0, "tensors": 10} for _ in range(4)]
        replies[rank] = {"found": found(altered), "bytes": n_bytes, "tensors": 10}
        return replies

    return judge_replies("lab7.differing", {"search": search})


def test_what_differs_is_found_by_every_rank_for_a_few_bytes():
    for rank in range(4):
        assert judged_search(rank=rank).points == 3
        few = judged_search(n_bytes=512 * 10 + 1, rank=rank)
        assert (few.points, "5,121 bytes are sent for 10 tensors" in few.cause) == (1.5, True)
        none = judged_search(lambda altered: [], rank=rank)
        assert (none.points, "the ranks return different lists" in none.cause) == (0, True)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (lambda due: [*due, SHARDED[0]], "hold the same bits"),
        (lambda due: [*due, WHOLE[0]], "equal wherever it ought to be"),
        (lambda due: [*due, "no such"], "no tensor called 'no such'"),
        (lambda due: due[1:], "is not found"),
    ],
)
def test_too_many_and_too_few_differences_are_told(found, words):
    def search(altered, **_):
        return [{"found": found(sorted({a[0] for a in altered})), "bytes": 0, "tensors": 10}] * 4

    verdict = judge_replies("lab7.differing", {"search": search})
    assert (verdict.points, words in verdict.cause) == (0, True), verdict.cause


def judged_experts(biases=None, rank=None, weights=1.0, collectives=0, n_bytes=0.0):
    """Of one rank, or of all; collectives and bytes beyond what is allowed."""
    right = [[0.02, -0.01], [0.0, 0.01], [0.03, 0.0]]
    extra = experts_training.N_LAYERS * experts_training.N_STEPS

    def reply(spoilt):
        return {
            "biases": biases if spoilt and biases else right,
            "weights": {"all": [weights if spoilt else 1.0, 2.0]},
            "collectives": 100 - experts_training.N_STEPS + extra + (collectives if spoilt else 0),
            "bytes": 1000 + 4096 * extra + (n_bytes if spoilt else 0),
        }

    due = [{"biases": right, "weights": {"all": [1.0, 2.0]}, "collectives": 100, "bytes": 1000}] * 4
    lone = [{"biases": [[0.05, 0.05]] * 3}] * 4
    mine = [reply(rank in (None, r)) for r in range(4)]
    return judge_replies("lab7.experts", {"experts": mine}, {"experts": due, "experts_of_rank_0": lone})


def test_biases_follow_the_load_of_all_ranks_for_a_few_numbers():
    assert judged_experts().points == judged_experts(weights=1.0009).points == 3
    off = [[0.02, -0.01], [0.0, 0.02], [0.03, 0.0]]
    said = {
        "the ranks hold different biases": (judged_experts(off, rank=3), 0),
        "do not follow the load of all tokens": (judged_experts(off), 0),
        "no whole number of steps": (judged_experts([[0.0225, -0.01], [0.0, 0.01], [0.03, 0.0]]), 0),
        "what rank 0 has seen alone": (judged_experts([[0.05, 0.05]] * 3), 0),
        "all biases are still 0": (judged_experts([[0.0, 0.0]] * 3), 0),
        "the weights are not those of the same training": (judged_experts(weights=1.01, rank=2), 0),
        "1 collectives more than allowed": (judged_experts(collectives=1, rank=1), 1.5),
        "5 bytes more than allowed": (judged_experts(n_bytes=5.0, rank=1), 1.5),
    }
    assert falls_short(said) == {}


def judged_resume(check: str, which: str = "resumed", written: int = 0, rank: int = 1, **other):
    """One rank of the resumed run, or of the one that was saved and went on, replies something else."""
    due = {
        "losses": [3.0, 2.9],
        "rates": [0.001, 0.002],
        "samples": [1, 4],
        "weights": {"all": [1.0, 2.0]},
        "average": {"all": [1.0, 2.0]},
        "written": 0,
    }
    mine = {name: [dict(due) for _ in range(2 if name == "resumed" else 4)] for name in ("interrupted", "resumed")}
    mine[which][rank] |= other
    mine["interrupted"][rank] |= {"written": written}
    return judge_replies(check, mine, {"interrupted": [due] * 4})


@pytest.mark.parametrize("which", ["interrupted", "resumed"])
def test_a_resumed_run_is_the_one_that_was_never_stopped(which):
    ask = partial(judged_resume, "lab7.resume", which)
    assert ask().points == 3
    said = {
        "samples are seen twice, or left out": (ask(samples=[1, 3]), 0),
        "a step's learning rate is": (ask(rates=[0.001, 0.0021]), 0),
        "the noise is not": (ask(losses=[3.0000001, 2.9]), 0),
        "other weights or other samples": (ask(losses=[3.1, 2.9]), 0),
        "what the update uses besides the gradient": (ask(losses=[3.0, 2.91]), 0),
        "the weights is another one": (ask(weights={"all": [1.0, 2.0000001]}), 0),
        "the average of the weights is another": (ask(average={"all": [1.0, 2.0000001]}), 0),
    }
    assert falls_short(said) == {}
    disturbs = "`save` disturbs the run that goes on"
    assert all((disturbs in v.cause) == (which == "interrupted") for v, _ in said.values())


def test_on_fewer_ranks_a_resumed_run_is_right_up_to_rounding_and_no_file_holds_everything():
    ask = partial(judged_resume, "lab7.resharding")
    assert ask(losses=[3.0, 2.9 * 1.00009], weights={"all": [1.0, 2.001]}).points == 2
    most = int(0.6 * resume.STATE_BYTES)
    assert ask(written=most).points == 2
    said = {
        "a later one is not": (ask(losses=[3.0, 2.9 * 1.00011]), 0),
        "the weights is another one": (ask(weights={"all": [1.0, 2.003]}), 0),
        "nearly all of the state": (ask(written=most + 1), 1),
    }
    assert falls_short(said) == {}


def test_the_solutions_experts_are_balanced_on_ranks(answers, unboxed):
    right = next(s for s in samples(LAB) if s.name == "right")
    assert unboxed(LAB).judge(answers(right), only="lab7.experts")[0].passed
