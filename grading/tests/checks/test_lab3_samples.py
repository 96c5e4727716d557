"""Lab 3's class before the referee, and what stands twice: in the notebook, and in the referee's own copy."""

import ast
import inspect
from types import SimpleNamespace

import pytest
from submissions import checks_that_nothing_needs, class_of, concerned, judge_replies, surprises_of, try_sample

from grading.boxes.sandbox.kernel_counters import Seen
from grading.checks.lab3_zero import judge_memory_traffic_overlap, norm, on_ranks, owners, truth, update
from grading.samples import read_lab, samples
from shardlab.tier import TIERS

ONE_RANK = ("lab3.shards",)  # checks whose drills need no other
LAB = "lab3_zero"


@pytest.mark.parametrize("sample", class_of(LAB))
def test_sample_gets_its_points_and_its_cause(sample, answers, referees, monkeypatch):
    monkeypatch.setattr("grading.judge.session.SHORTEST_DEADLINE_S", 6.0)  # for the one that hangs
    try_sample(sample, answers(sample), referees(LAB))


@pytest.mark.parametrize("sample", concerned(LAB, ONE_RANK))
def test_sample_gets_its_points_where_one_rank_is_asked(sample, answers, unboxed):
    assert surprises_of(sample, answers(sample), unboxed(LAB), ONE_RANK) == []


def test_every_check_stops_a_sample_that_no_other_check_stops():
    assert checks_that_nothing_needs(LAB) == set()


def test_the_notebook_shows_the_model_and_the_program_that_the_referee_runs():
    cells = {c.metadata.nbgrader.grade_id: c.source for c in read_lab("solutions", LAB).cells}
    for cell, ours in (("model", on_ranks.Net), ("program", on_ranks.Replicated)):
        theirs = next(n for n in ast.parse(cells[cell]).body if isinstance(n, ast.ClassDef))
        assert _code(theirs) == _code(ast.parse(inspect.getsource(ours)).body[0])
    sizes = next(n for n in ast.parse(cells["model"]).body if isinstance(n, ast.Assign))
    assert eval(ast.unparse(sizes.value)) == on_ranks.SIZES


def _code(node: ast.ClassDef) -> str:
    """Without the docstring."""
    documented = isinstance(node.body[0], ast.Expr)
    return "\n".join(map(ast.unparse, node.body[documented:]))


@pytest.mark.parametrize("tier", on_ranks.BUDGETS)
def test_budgets_are_the_states_and_the_same_spare_on_every_tier(tier):
    """Held: weights, 2 of AdamW, 6% to spare. Peak: gradients too, and 55%, of which a bucket takes at most 9%."""
    psi = judge_memory_traffic_overlap.psi_bytes(tier)
    for fraction in (0.1, 0.25):
        assert on_ranks.budget_bytes(tier, "held", fraction) == pytest.approx((1.06 + 2 * fraction) * psi, rel=0.01)
        assert on_ranks.budget_bytes(tier, "peak", fraction) == pytest.approx((1.55 + 3 * fraction) * psi, rel=0.01)
    assert max(judge_memory_traffic_overlap.bucket_bytes(tier)) < 0.09 * psi


@pytest.mark.parametrize("n", (1, 2, 4, 8))
def test_the_rule_gives_every_element_one_owner(n):
    for instance in owners.drawn(n):
        times = [[0] * size for size in instance["sizes"]]
        for pieces in owners.expected(instance):
            for i, start, end in pieces:
                times[i][start:end] = [t + 1 for t in times[i][start:end]]
        assert all(t == 1 for parameter in times for t in parameter)


@pytest.mark.parametrize("world_size", (2, 4, 8))
def test_shares_are_never_all_equal(world_size):
    for seed in range(20):
        shares = on_ranks.shares(seed, world_size)
        assert len(shares) == world_size and sorted(shares) == [2, *[4] * (world_size - 2), 5]


def test_a_collective_counts_as_hidden_only_if_a_gradient_is_made_before_it_is_waited_for():
    """Two buckets of 1000 bytes, sent at 1 and 3, while gradients are made at 0, 2 and 4, and backward ends at 5."""

    def reply(waits):
        collectives = [{"kind": "reduce_scatter", "bytes": 1000, "sent": 750, "at": at} for at in (1.0, 3.0)]
        return {"collectives": collectives, "gradients": [0.0, 2.0, 4.0], "waits": waits, "ends": [5.0]}

    assert judge_memory_traffic_overlap.covered(reply([2.5, 4.5])) == 1.0
    assert judge_memory_traffic_overlap.covered(reply([1.5, 3.5])) == 0.0
    assert judge_memory_traffic_overlap.covered(reply([1.5, 4.5])) == 0.5
    assert judge_memory_traffic_overlap.covered(reply([])) == 1.0
    assert judge_memory_traffic_overlap.issued_early(reply([1.5, 3.5])) == 1.0


def test_mistakes_can_be_told_apart():
    """Each changes the weights by far more than what passes as the same."""
    plan = (on_ranks.PlannedStep(2, 1.0),)
    run = truth.Setting(1, 8 / 1024, (4, 5, 3, 4), "SGD", 1e9, plan)
    right = truth.simulate(run)[0].change
    for words, combine in truth.COMBINED_WRONGLY.items():
        wrong = truth.simulate(run, combine=combine)[0].change
        assert (wrong - right).norm() > 0.1 * right.norm(), words
    tight = run._replace(max_norm=0.5 * truth.simulate(run)[0].norm)
    right = truth.simulate(tight)[0].change
    for words, clip in truth.CLIPPED_WRONGLY.items():
        if clip is not truth.always:  # which differs below max_norm only
            assert (truth.simulate(tight, clip=clip)[0].change - right).norm() > 0.02 * right.norm(), words


# The judges alone, on what ranks might reply


def session(seed: int = 1) -> SimpleNamespace:
    return SimpleNamespace(seed=seed, tier=TIERS["cpu"])


@pytest.fixture(scope="module")
def norms():
    """The right ones of each step."""
    first = truth.simulate(update.setting(session(), "none", 1.0, norm.PLAN[:1]))[0].norm
    return [step.norm for step in truth.simulate(update.setting(session(), "none", 1.5 * first, norm.PLAN))]


def judged_norms(*of_ranks: list[float]):
    return judge_replies("lab3.norm", {"train": [[{"norm": x} for x in steps] for steps in of_ranks]})


def test_the_norm_is_asked_of_every_rank_at_every_step(norms):
    assert judged_norms(*[norms] * 4).points == 2
    assert judged_norms(*[[0.9991 * x for x in norms]] * 4).points == 2
    for rank in range(4):
        for step in range(3):
            of_ranks = [list(norms) for _ in range(4)]
            of_ranks[rank][step] *= 1.002
            verdict = judged_norms(*of_ranks)
            assert verdict.points == 0, (rank, step)
            assert f"step {step + 1}: the ranks return different norms" in verdict.cause


def test_each_mistake_of_the_norm_is_named(norms):
    own = [[x * share**0.5 for x in norms] for share in (0.1, 0.2, 0.3, 0.4)]
    said = {
        "they were never put together": judged_norms(*own),
        "the square of the norm": judged_norms(*[[x * x for x in norms]] * 4),
        "the norm of a sum over ranks": judged_norms(*[[4 * x for x in norms]] * 4),
        "every rank's squares are those of the whole": judged_norms(*[[2 * x for x in norms]] * 4),
        "squares were averaged over ranks": judged_norms(*[[x / 2 for x in norms]] * 4),
        "the norm is 0": judged_norms(*[[0.0] * 3] * 4),
        "the step before was right": judged_norms(*[[norms[0], 1.3 * norms[1], norms[2]]] * 4),
        "was returned and": judged_norms(*[[float("nan")] * 3] * 4),
    }
    assert {words: v.cause for words, v in said.items() if v.points or words not in v.cause} == {}


def replies_of(steps: list[truth.Step], times: float = 1.0, ranks: int = 4) -> list[list[dict]]:
    """Of a training whose weights changed so, on all ranks alike."""
    seen = [
        {"change": {"all": (times * step.change).tolist()}, "bits": str(k), "moved": False, "still": step.still}
        for k, step in enumerate(steps)
    ]
    return [[dict(step) for step in seen] for _ in range(ranks)]


@pytest.fixture(scope="module")
def trained():
    """The steps of the judge's two runs, with SGD and with AdamW; and with two mistakes."""
    sgd, adamw = update.unclipped(session()), update.clipped(session())
    summed = next(iter(truth.COMBINED_WRONGLY.values()))
    return {
        "SGD": truth.simulate(sgd),
        "AdamW": truth.simulate(adamw),
        "summed": truth.simulate(sgd, combine=summed),
        "never clipped": truth.simulate(adamw, clip=truth.never),
    }


def judged_update(sgd: list, adamw: list):
    return judge_replies("lab3.update", {"train": lambda optimizer, **_: sgd if optimizer == "SGD" else adamw})


def test_weights_are_those_of_one_process_on_every_rank_to_the_bit(trained):
    right, right_adamw = replies_of(trained["SGD"]), replies_of(trained["AdamW"])
    assert judged_update(right, right_adamw).points == 4
    assert judged_update(replies_of(trained["SGD"], 1.0009), right_adamw).points == 4
    assert judged_update(replies_of(trained["SGD"], 1.002), right_adamw).points == 0
    summed = judged_update(replies_of(trained["summed"]), right_adamw)
    assert (summed.points, "summed over ranks and not divided" in summed.cause) == (0, True)
    never_clipped = judged_update(right, replies_of(trained["never clipped"]))
    assert (never_clipped.points, "never clipped" in never_clipped.cause) == (2, True)
    for rank in range(4):
        other_bits = replies_of(trained["SGD"])
        other_bits[rank][1]["bits"] = "other"
        verdict = judged_update(other_bits, right_adamw)
        assert (verdict.points, "differ in their last bits" in verdict.cause) == (0, True)
        one_wrong = replies_of(trained["SGD"])
        one_wrong[rank][2]["change"]["all"] = [0.0 for _ in one_wrong[rank][2]["change"]["all"]]
        assert judged_update(one_wrong, right_adamw).points == 0


def skipped(rank: int | None = None, step: int = 1, **other) -> list[list[dict]]:
    """Five steps, the second and fourth of which all skip; `other` of what one rank replies of one step."""
    bits, moves = ["a", "a", "b", "b", "c"], [1.0, 1.0, 2.0, 2.0, 3.0]
    nan = float("nan")
    norms = [1.0, nan, 1.0, nan, 1.0]
    replies = [
        [
            {"bits": b, "change": {"all": [m, -m]}, "norm": n, "moved": False, "still": {}}
            for b, m, n in zip(bits, moves, norms, strict=True)
        ]
        for _ in range(4)
    ]
    if rank is not None:
        replies[rank][step] |= other
    return replies


def judged_skip(poisoned: list):
    def train(plan, **_):
        return poisoned if any(step[2] for step in plan) else skipped()

    return judge_replies("lab3.skip", {"train": train})


def test_a_spoilt_step_is_skipped_by_all_and_the_next_one_is_right():
    assert judged_skip(skipped()).points == 2
    for rank in range(4):
        for step in (1, 3):
            changed = judged_skip(skipped(rank, step, bits="other"))
            assert (changed.points, "have changed all the same" in changed.cause) == (0, True)
            finite = judged_skip(skipped(rank, step, norm=1.0))
            assert (finite.points, "returned a finite norm" in finite.cause) == (0, True)
        after = judged_skip(skipped(rank, 2, change={"all": [2.01, -2.01]}))
        assert (after.points, "something of the skipped step was kept" in after.cause) == (0, True)
    assert judged_skip(skipped(0, 2, change={"all": [2.001, -2.001]})).points == 2


def test_what_is_held_and_what_is_needed_at_the_peak_are_worth_half_each():
    tier = "cpu"
    shares = on_ranks.shares(1, 4)
    fractions = [x / sum(shares) for x in shares]

    def judged(held: float, peak: float, rank: int, seen: float | None = None):
        """Of one rank, beside its budgets, in bytes. `seen`: what the system saw of a rank and nobody accounts for."""

        def reply(r):
            off = (held, peak) if r == rank else (-1, -1)
            most = [
                int(on_ranks.budget_bytes(tier, w, fractions[r]) + o)
                for w, o in zip(("held", "peak"), off, strict=True)
            ]
            return {
                "held": {"parameters": 0, "gradients": 0, "optimizer_states": most[0]},
                "peak": {"gradients": most[1], "where": "step"},
                "moments": [],
            }

        replies = [reply(r) for r in range(4)]
        claimed = {w: sum(sum(v for k, v in r[w].items() if k != "where") for r in replies) for w in ("held", "peak")}
        more = int(4 * (seen or 0))
        mine = Seen(10**9 + claimed["peak"] + more, 10**9 + claimed["held"] + more) if seen is not None else Seen()
        of_reference = Seen(10**9 + claimed["peak"], 10**9 + claimed["held"]) if seen is not None else Seen()
        return judge_replies(
            "lab3.memory",
            {"record_step": replies, "memory": replies, "seen": mine},
            {"memory": replies, "seen": of_reference},
        )

    for rank in range(4):
        assert judged(0, 0, rank).points == 4
        assert judged(2, 0, rank).points == judged(0, 2, rank).points == 2
        assert judged(2, 2, rank).points == 0
        assert f"after a step rank {rank} holds" in judged(2, 0, rank).cause
    assert judged(0, 0, 0, seen=judge_memory_traffic_overlap.SPARE_MEMORY - 10).points == 4
    hidden = judged(0, 0, 0, seen=judge_memory_traffic_overlap.SPARE_MEMORY + 10)
    assert (hidden.points, "the system saw" in hidden.cause) == (0, True)


def test_traffic_is_so_many_messages_and_bytes():
    tier, n = "cpu", 4
    buckets, shares = judge_memory_traffic_overlap.bucket_bytes(tier), on_ranks.shares(1, n)
    most = judge_memory_traffic_overlap.PASSES * (len(buckets) + judge_memory_traffic_overlap.SPARE_COLLECTIVES)
    small = judge_memory_traffic_overlap.SMALL_COLLECTIVES + judge_memory_traffic_overlap.PASSES * sum(
        b <= judge_memory_traffic_overlap.SMALL_BYTES for b in buckets
    )
    n_bytes = judge_memory_traffic_overlap.PASSES * (
        (n - 1) * max(shares) / sum(shares) * judge_memory_traffic_overlap.psi_bytes(tier)
        + judge_memory_traffic_overlap.SPARE_BYTES * len(buckets)
    )

    def judged(count: int, sent: float, n_small: int, kind: str = "reduce_scatter"):
        one = {"kind": kind, "bytes": 1000, "at": 0.0}
        collectives = [one | {"sent": sent / count}] * count + [one | {"bytes": 256, "sent": 0}] * n_small
        return judge_replies("lab3.traffic", {"record_step": [{"collectives": collectives}] * n})

    assert judged(most, 0.999 * n_bytes, small).points == 2
    said = {
        "each one pays the link's latency": judged(most + 1, n_bytes / 2, small),
        "times the bytes that are due: something goes out more than once": judged(most, 1.001 * n_bytes, small),
        "an all_reduce brings every rank all gradients": judged(most, 1.5 * n_bytes, small, "all_reduce"),
        "small messages a step": judged(most, n_bytes / 2, small + 1),
        "no gradient was ever sent": judged(most, n_bytes / 2, small, "all_gather"),
    }
    assert {words: v.cause for words, v in said.items() if v.points or words not in v.cause} == {}


@pytest.mark.timeout(200)
def test_the_solutions_norm_is_right_on_ranks(answers, unboxed):
    right = next(s for s in samples(LAB) if s.name == "right")
    assert unboxed(LAB).judge(answers(right), only="lab3.norm")[0].passed
