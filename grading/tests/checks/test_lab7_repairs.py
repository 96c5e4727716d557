"""Lab 7's judges of the training that hangs and of the memory, on what ranks might reply."""

import json
import math
from types import SimpleNamespace

import pytest
from submissions import falls_short, judge_replies

from grading.boxes.rank_launcher_client import RanksFailedError
from grading.boxes.sandbox.memory_and_network_counters import Seen
from grading.checks.lab7_debug import judge_forward_passes
from grading.checks.lab7_debug import judge_hang as hang_judge
from grading.checks.lab7_debug import judge_memory as memory_judge
from shardlab.tier import TIERS

MIB = 2**20
SEEDS = range(12)


def drawn(seed: int) -> SimpleNamespace:
    """As much of a session as its draws need."""
    return SimpleNamespace(seed=seed, tier=TIERS["cpu"])


def judged_memory(peak=16.0, growth=0, rank=3, seen=None, history=None, way=1.0, python=0, steps=4, reported=6):
    """Of one rank: MiB at the peak, bytes that the run grows by, MiB that the system saw and nobody accounts for."""

    def reply(spoilt):
        most = int((peak if spoilt else 15.0) * MIB)
        after = [10**6, 2 * 10**6, 2 * 10**6, 2 * 10**6 + (growth if spoilt else 0)]
        return {
            "history": history if spoilt and history else [[3.0, 10.0], [2.5, 12.0]],
            "way": {"all": [way if spoilt else 1.0, 2.0]},
            "peak": {"gradients": most - 100, "parameters": 100},
            "moments": [],
            "after": after[: steps if spoilt else 4],
        }

    mine, due = [reply(r == rank) for r in range(4)], [reply(False)] * 4
    claimed = [sum(sum(r["peak"].values()) for r in replies) for replies in (mine, due)]
    looks = (
        (Seen(), Seen()) if seen is None else (Seen(10**9 + claimed[0] + int(4 * seen * MIB)), Seen(10**9 + claimed[1]))
    )
    held = [
        {
            "after": [5000, 9000, *(9000 + i * (python if r == rank else 0) for i in range(1, 5))],
            "reported": reported if r == rank else 6,
        }
        for r in range(4)
    ]
    replies = {"accumulation": mine, "python_memory": held, "seen": looks[0]}
    truth = {"history": [[[3.0, 10.0], [2.5, 12.0]]] * 4, "way": {"all": [1.0, 2.0]}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_judge, "truth_of", lambda seed, world_size: truth)
        return judge_replies("lab7.memory", replies, {"accumulation": due, "seen": looks[1]})


def test_memory_does_not_grow_and_stays_within_tomorrows_budget():
    for rank in range(4):
        assert judged_memory(growth=1024, python=16 << 10, rank=rank).points == 4
        said = {
            "any budget ends some day": (judged_memory(growth=1025, rank=rank), 0),
            "Python and numpy hold 16,385 bytes more": (judged_memory(python=(16 << 10) + 1, rank=rank), 0),
            "for a second model, it reports 7 steps of 6": (judged_memory(reported=7, rank=rank), 0),
            "are too much for tomorrow's cards": (judged_memory(peak=16.1, rank=rank), 2),
            "3.60 MiB more than need be": (judged_memory(peak=18.6, rank=rank), 2),
            "Of gradients there are": (judged_memory(peak=19.6, rank=rank), 0),
            f"rank {rank} reports a loss of 3.0045": (
                judged_memory(history=[[3.0045, 10.0], [2.5, 12.0]], rank=rank),
                0,
            ),
            "2 tokens predicted right in step 1": (judged_memory(history=[[3.0, 10.0], [2.5, 2.0]], rank=rank), 0),
            "nan tokens predicted right": (judged_memory(history=[[3.0, 10.0], [2.5, math.nan]], rank=rank), 0),
            "a loss of nan": (judged_memory(history=[[math.nan, 10.0], [2.5, 12.0]], rank=rank), 0),
            "reports 1 steps of 2": (judged_memory(history=[[3.0, 10.0]], rank=rank), 0),
            f"rank {rank}'s optimizer makes 3 steps of 4": (judged_memory(steps=3, rank=rank), 0),
            "the weights at the end are not": (judged_memory(way=1.03, rank=rank), 0),
        }
        assert falls_short(said) == {}
    assert judged_memory(history=[[3.0027, 11.0], [2.5, 12.0]], way=1.02).points == 4
    assert judged_memory(seen=2.99).points == 4
    assert falls_short({"the system saw": (judged_memory(seen=3.01), 0)}) == {}


def run_of(run: dict, rank: int) -> dict:
    """What a rank replies whose training is right and whose part of the validation is as large as the others'."""
    truth = hang_judge.truth_of(run, 1, 4)
    passes = math.ceil(run["n_documents"] / (4 * run["batch_size"]))
    mine = len(range(rank, run["n_documents"], 4))
    rows = [max(1, min(run["batch_size"], mine - i * run["batch_size"])) for i in range(passes)]
    made = []
    for step in range(run["n_steps"]):
        made.append([step, 2, True])
        made += [[-1, n, False] for n in rows] if str(step) in truth["validation"] else []
    return truth | {"passes": made}


@pytest.fixture
def trained(monkeypatch):
    """The truth is the judge's, too, and worked out once."""
    truth_of, found = hang_judge.truth_of, {}

    def once(run, seed, world_size):
        key = json.dumps([run, seed, world_size])
        found[key] = found.get(key) or truth_of(run, seed, world_size)
        return found[key]

    monkeypatch.setattr(hang_judge, "truth_of", once)
    settings = hang_judge.settings(drawn(1))
    return {name: [[run_of(run, rank) for run in runs] for rank in range(4)] for name, runs in settings.items()}


def judged_hang(trained, name="batch", error=None, **other):
    """Rank 2 of the last run replies something else; or the run ends with an error."""

    def trainings(runs, **_):
        asked = "batch" if runs[0]["padded"] else "documents"
        if asked == name and error:
            raise error
        replies = [[dict(run) for run in runs] for runs in trained[asked]]
        if asked == name:
            replies[2][-1] |= other
        return replies

    return judge_replies("lab7.hang", {"trainings": trainings})


def test_a_run_that_is_no_longer_the_same_training_costs_half(trained):
    assert judged_hang(trained).points == 4
    for name, replies in trained.items():
        one = replies[2][-1]
        ways = {factor: {n: [factor * x for x in xs] for n, xs in one["way"].items()} for factor in (1.0009, 1.002)}
        off = {step: loss * 1.00002 for step, loss in one["validation"].items()}
        first = next(i for i, (step, *_) in enumerate(one["passes"]) if step == -1)
        before, (_, rows, _), after = one["passes"][:first], one["passes"][first], one["passes"][first + 1 :]

        def passes(*new, before=before, after=after):
            return [*before, *new, *after]

        said = {
            "an update is missing or altered": (judged_hang(trained, name, way=ways[1.002]), 2),
            "a validation is due after the steps": (judged_hang(trained, name, validation={}), 2),
            "the ranks report different validation losses": (judged_hang(trained, name, validation=off), 2),
            "had to be skipped; rank 2 reports": (judged_hang(trained, name, skipped=[2, 5]), 2),
            "forward passes for it where": (judged_hang(trained, name, passes=passes(*[[-1, rows, False]] * 9)), 2),
            "puts 4 documents at once": (judged_hang(trained, name, passes=passes([-1, 4, False])), 2),
            "without torch.no_grad": (judged_hang(trained, name, passes=passes([-1, rows, True])), 2),
            "went through the model 0 times": (judged_hang(trained, name, passes=one["passes"][1:]), 2),
            "went through the model 2 times": (judged_hang(trained, name, passes=[[0, 2, True], *one["passes"]]), 2),
            "no validation is due": (judged_hang(trained, name, passes=[[-1, 2, False], *one["passes"]]), 2),
            "fails: it raised": (judged_hang(trained, name, RanksFailedError("it raised")), 2),
            "still hangs: no result": (judged_hang(trained, name, RanksFailedError("no result", timed_out=True)), 2),
        }
        assert falls_short(said) == {}
        assert judged_hang(trained, name, way=ways[1.0009]).points == 4


def test_too_few_documents_of_all_ranks_together_are_named():
    run = {"n_steps": 1, "n_documents": 3, "batch_size": 2}
    passes = [[[0, 2, True], [-1, 2, False]], [[0, 2, True], [-1, 1, False]]]
    assert judge_forward_passes.judge_passes(passes, [0], run) == ""
    passes[1][1][1] = 0
    assert "2 documents went through the sharded model for it, of 3" in judge_forward_passes.judge_passes(
        passes, [0], run
    )


def test_each_draw_of_runs_breaks_several_steps_and_clips_only_some():
    for seed in SEEDS:
        [short, batch], documents = hang_judge.settings(drawn(seed)).values()
        broken = [*batch["padded"], *batch["infinite"]]
        assert len({step for step, _ in broken}) == 3
        assert (len(short["padded"]), short["infinite"]) == (1, [])
        assert any(rank for _, rank in batch["padded"])
        counts = {run["n_documents"] for run in documents}
        assert min(counts) < 4 < max(counts)
        assert len(counts) == 3
        assert any(n % 4 for n in counts)
        assert any(run["batch_size"] == 1 and run["n_documents"] < 4 for run in documents)  # a rank has no document
    norms = {run["max_norm"]: hang_judge.truth_of(run, 5, 4)["norms"] for run in (batch, *documents)}
    some, every, none = hang_judge.MAX_NORMS  # the text that is trained on is Python's own, another one in each version
    assert min(norms[some]) < some < max(norms[some])
    assert min(norms[every]) > every
    assert max(norms[none]) < none
