"""Lab 10's class before the referee, and its judges alone, on what ranks might reply."""

import ast
import inspect

import pytest
import torch
from submissions import checks_that_nothing_needs, class_of, judge_replies, try_sample

from grading.boxes.sandbox.memory_and_network_counters import Seen
from grading.checks.lab10_eight_bits import (
    draw,
    e4m3_numbers,
    halfway_numbers,
    independence_of_draws,
    judge_gathered_weights,
    judge_unbiased,
    judge_wire,
    on_ranks,
    truth,
)
from grading.checks.lab10_eight_bits.reused_random_numbers import share_draws
from grading.samples.sample import read_lab, samples
from shardlab import launch

LAB, N = "lab10_eight_bits", 4
SEED = 1  # that `judge_replies` takes


@pytest.mark.parametrize("sample", class_of(LAB))
def test_sample_gets_its_points_and_its_cause(sample, answers, referees):
    try_sample(sample, answers(sample), referees(LAB))


def test_every_check_stops_a_sample_that_no_other_check_stops():
    assert checks_that_nothing_needs(LAB) == set()


@pytest.mark.timeout(200)
def test_the_solution_reduces_by_chance_on_ranks(answers, unboxed):
    right = next(s for s in samples(LAB) if s.name == "right")
    assert unboxed(LAB).judge(answers(right), only="lab10.unbiased")[0].passed


@pytest.mark.parametrize("drill, calls", [("steps", on_ranks.N_STEPS), ("reduce", on_ranks.N_CALLS + 2)])
def test_another_engine_is_used_between_calls_of_the_judged_one(drill, calls):
    def used() -> list[int]:
        engines, order = [], []

        class Noted(on_ranks.Plain):
            def __init__(self, *arguments):
                super().__init__(*arguments)
                engines.append(self)

            def reduce(self, gradients):
                order.append(engines.index(self))
                return super().reduce(gradients)

        getattr(on_ranks, drill)(Noted, SEED)
        return order

    assert launch(used, 2, device="cpu")[0] == [0, 1, 1, 1, 0, *[1] * (calls - 3)]


def test_the_notebook_shows_the_program_that_the_referee_runs():
    cell = next(c for c in read_lab("solutions", LAB).cells if c.metadata.nbgrader.grade_id == "program")
    ours = ast.parse(inspect.getsource(on_ranks.Plain)).body[0]
    theirs = next(n for n in ast.parse(cell.source).body if isinstance(n, ast.ClassDef))
    documented = ours.body[1:]
    assert [*map(ast.unparse, documented)] == [*map(ast.unparse, theirs.body)]


# What is drawn


@pytest.mark.parametrize("n", (2, 4, 8))
def test_every_draw_has_what_answers_depend_on(n):
    for seed in range(30):
        drawn = draw.instances(seed, n)
        assert all({*i.formats} == {"tensor", "row"} and len(i.cuts) == n + 1 for i in drawn)
        assert [not i.cuts_a_row for i in drawn] == [k % 3 == 0 for k in range(len(drawn))]
        assert n == 2 or any(0 in [b - a for a, b in zip(i.cuts, i.cuts[1:], strict=False)] for i in drawn)
        flats = [draw.flat(draw.weights(i, seed + k)) for k, i in enumerate(drawn)]
        groups = [part for i, flat in zip(drawn, flats, strict=True) for part in flat.split(i.group_sizes)]
        assert any(not part.any() for part in groups)
        assert any(part.min() < -1.5 * part.max() for part in groups if part.max() > 0)
        apart = [truth.mistake(truth.of_own_shard(f, i), f, i) for i, f in zip(drawn, flats, strict=True)]
        assert sum("own shard" in words for words in apart) > len(drawn) / 2


def test_every_usual_mistake_gives_wrong_weights():
    instance = draw.one_instance(SEED, N, rows=20)
    flat = draw.flat(draw.weights(instance, SEED))
    scale = truth.scales(flat, instance.group_sizes)
    assert not truth.wrong_places(truth.rounded(flat, scale), flat, scale).any()
    for words, make in truth.MISTAKES.items():
        found = make(flat, instance)
        assert truth.wrong_places(found, flat, scale).any(), words
        assert truth.mistake(found, flat, instance), words


@pytest.mark.parametrize("n", [2, 4, 8])
def test_some_border_always_cuts_a_row_that_has_a_scale_of_its_own(n):
    """Else the amax of a rank's own part of each row would be right in all ten steps."""
    for seed in range(100):
        instance = draw.one_instance(seed, n, rows=20)
        begins = dict(zip(instance.row_borders, instance.row_borders[1:], strict=False))
        scaled, first = set(), 0
        for size, format in zip(instance.sizes, instance.formats, strict=True):
            if format == "row":
                scaled |= {*range(first, first + size)} - {*begins}
            first += size
        assert scaled & {*instance.cuts}, seed
        assert len({*instance.cuts}) == n + 1


# Numbers of E4M3


def test_neighbours_and_nearest_are_those_of_the_format():
    x = torch.tensor([0.0, 2.0**-11, 2.0**-9, 0.017, 1.0, 1.05, -1.05, 447.0, 448.0, -500.0], dtype=torch.float64)
    below, above = e4m3_numbers.neighbours(x)
    assert below.tolist() == [0, 0, 2**-9, 2**-6, 1, 1, -1.125, 416, 448, -448]
    assert above.tolist() == [0, 2**-9, 2**-9, 2**-6 + 2**-9, 1, 1.125, -1, 448, 448, -448]
    assert ((e4m3_numbers.nearest(x) == below) | (e4m3_numbers.nearest(x) == above)).all()


# Judges


def weights_as_replied(flat: torch.Tensor) -> list[dict]:
    return [{"form": "", "bits": "same", "whole": on_ranks.packed(flat.float())} for _ in range(N)]


def test_a_weight_may_be_off_by_a_hundred_thousandth_and_no_more():
    instance = draw.one_instance(SEED, N, rows=20)
    flat = draw.flat(draw.weights(instance, SEED))
    right = truth.rounded(flat, truth.scales(flat, instance.group_sizes))
    i = int((flat.abs() > 0).nonzero()[5])
    for share, passes in ((0.5, True), (3.0, False)):
        found = right.clone()
        found[i] += share * truth.CLOSE * float(flat[i])
        assert (judge_gathered_weights.fault(weights_as_replied(found), flat, instance) == "") is passes
    replies = weights_as_replied(right)
    for rank in range(1, N):
        other = [dict(reply, bits="other") if r == rank else reply for r, reply in enumerate(replies)]
        assert f"rank {rank} differ from those of rank 0" in judge_gathered_weights.fault(other, flat, instance)
        formless = [
            dict(reply, form="`gather` returned None") if r == rank else reply for r, reply in enumerate(replies)
        ]
        assert f"on rank {rank} `gather` returned None" in judge_gathered_weights.fault(formless, flat, instance)


def replied_steps(change=lambda step, rank, reply: None) -> list[list[dict]]:
    instance = draw.one_instance(SEED, N, rows=20)
    whole, of_ranks = draw.weights(instance, SEED), [[] for _ in range(N)]
    for step in range(on_ranks.N_STEPS):
        flat = draw.flat(whole)
        for rank, reply in enumerate(weights_as_replied(truth.rounded(flat, truth.scales(flat, instance.group_sizes)))):
            reply |= {"shard changed": False, "gradient changed": False}
            change(step, rank, reply)
            of_ranks[rank].append(reply)
        whole = draw.updated(whole, SEED, step)
    return of_ranks


def test_each_step_of_each_rank_counts():
    assert judge_replies("lab10.steps", {"steps": replied_steps()}).points == 3
    for field, value, words in (
        ("shard changed", True, "`gather` changed the shard"),
        ("gradient changed", True, "`reduce` changed the gradient"),
        ("bits", "other", "differ from those of rank 0"),
    ):
        for step, rank in ((0, 1), (9, 3)):

            def change(k, r, reply, field=field, value=value, step=step, rank=rank):
                if (k, r) == (step, rank):
                    reply[field] = value

            verdict = judge_replies("lab10.steps", {"steps": replied_steps(change)})
            assert verdict.points == 0 and words in verdict.cause and f"step {step + 1}:" in verdict.cause


@pytest.fixture(scope="module")
def given():
    return judge_unbiased.problem(SEED, N)


def drawn_calls(given, chances, seed: int = 0) -> list[torch.Tensor]:
    """Return the mean of every call, if each rank's numbers go up with these chances."""
    draw_numbers = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(on_ranks.N_CALLS):
        up = torch.rand(given.x.shape, generator=draw_numbers) < chances
        found.append(torch.where(up, given.above, given.below).sum(0) / N)
    return found


def judged_calls(given, calls: list[torch.Tensor], zeros: float = 0.0, other: torch.Tensor | None = None):
    later = judge_unbiased.problem_of(given.instance, SEED + 1, N)
    known = {"first": calls[0], "second": calls[1], "sum": sum(calls), "zeros": torch.full_like(calls[0], zeros)}
    known["other"] = later.near.sum(0) / N if other is None else other
    replies = []
    for a, b in zip(given.instance.cuts, given.instance.cuts[1:], strict=False):
        packed = {n: on_ranks.packed(t[a:b]) for n, t in known.items()}
        replies.append({"form": ""} | packed)
    nothing_off = {"form": "", "off": 0, "faint": [0, 0], "halfway": [], "halfway off": 0}
    nothing_off |= dict.fromkeys(on_ranks.CALLS, "")
    with pytest.MonkeyPatch.context() as patch:
        for judge in (independence_of_draws, halfway_numbers):  # they have tests of their own
            patch.setattr(judge, "fault", lambda *_: "")
        return judge_replies("lab10.unbiased", {"reduce": replies, "many": [nothing_off] * N})


def chances(given):
    gap = given.above - given.below
    return torch.where(gap > 0, (given.x - given.below) / gap, 0.0)


def test_draws_with_the_right_chance_pass_and_others_drift(given):
    p = chances(given)
    for seed in range(5):
        assert judged_calls(given, drawn_calls(given, p, seed)).points == 5
    for wrong in (p**2, p.sqrt(), (p + 0.08).clamp(0, 1) * (p > 1e-3), torch.where(given.subnormal, 0.9 * p, p)):
        verdict = judged_calls(given, drawn_calls(given, wrong))
        assert verdict.points == 2, verdict.text()
    assert judged_calls(given, drawn_calls(given, p), zeros=1e-12).points == 2
    later = judged_calls(given, drawn_calls(given, p), other=given.near.sum(0) / N)
    assert later.points == 0 and "the first call is right, but a later one is not" in later.cause


def test_random_numbers_of_eight_bits_are_found_where_chances_are_tiny(given):
    verdict = judged_calls(given, drawn_calls(given, (chances(given) * 256).floor() / 256))
    assert verdict.points == 2 and "drift" in verdict.cause


def alike(given, *calls) -> bool:
    return share_draws(
        *(judge_unbiased.weighted(call, given) for call in calls), judge_unbiased.weighted_variance(given)
    )


@pytest.mark.parametrize("period", [48, 128, 5000])
def test_random_numbers_that_repeat_along_the_flat_gradient_are_found(given, period):
    """Whatever the period: here it is no matrix's width."""
    p, numbers = chances(given), torch.Generator().manual_seed(1)
    drawn = torch.rand(N, period, generator=numbers).repeat(1, p.shape[1] // period + 1)[:, : p.shape[1]]
    right = drawn_calls(given, p)
    assert alike(given, torch.where(drawn < p, given.above, given.below).sum(0) / N, right[0])
    assert not any(alike(given, a, b) for a, b in zip(right, right[1:], strict=False))


@pytest.mark.parametrize("shift", [-3000, 17, 2000])
def test_random_numbers_that_two_calls_share_are_found(given, shift):
    p = chances(given)
    drawn = torch.rand(p.shape, generator=torch.Generator().manual_seed(2))
    calls = [torch.where(u < p, given.above, given.below).sum(0) / N for u in (drawn, drawn.roll(shift, 1))]
    assert alike(given, *calls)


def test_ratios_of_right_draws_scatter_as_their_deviation_says(given):
    p, found = chances(given), []
    for seed in range(10):
        calls = drawn_calls(given, p, 100 + seed)
        found += [(ratio - 1) / sd for ratio, sd in judge_unbiased.all_ratios(calls[0], sum(calls), given).values()]
    scatter = torch.tensor(found)
    assert 0.5 < float(scatter.square().mean()) < 2 and float(scatter.abs().max()) < 5


def test_a_call_is_a_mean_of_neighbours_of_each_rank(given):
    right = drawn_calls(given, chances(given))[0]
    assert judge_unbiased.wrong_call(right, given) == ""
    off = right.clone()
    i = int((given.x.abs().sum(0) > 0).nonzero()[0])
    for share, passes in ((0.5, True), (3.0, False)):
        off[i] = right[i] + share * judge_unbiased.CLOSE * float(given.x[:, i].abs().sum()) / N
        assert (judge_unbiased.wrong_call(off, given) == "") is passes
    said = {
        "the sum over ranks": right * N,
        "once more": right / N,
        "were not rounded": given.x.sum(0) / N,
        "not finite": torch.full_like(right, torch.nan),
    }
    assert [words for words, mean in said.items() if words not in judge_unbiased.wrong_call(mean, given)] == []


@pytest.mark.parametrize("call", [0, on_ranks.WIRE_CALLS - 1])
@pytest.mark.parametrize("rank", range(N))
def test_bytes_and_messages_of_each_rank_and_call_have_two_bounds(rank, call):
    instance = on_ranks.wire_instance(SEED, N)
    most, least = judge_wire.budget(instance, N), judge_wire.FEWEST * (N - 1) * sum(instance.sizes)

    def judged(n_bytes: float, messages: int = 2, seen: float = 0.257):
        def of_call(r, k):
            of_rank, times = (n_bytes, messages) if (r, k) == (rank, call) else (least / N + 100, 2)
            return [["all_gather", of_rank / times]] * times

        def reply(r):
            return {"messages": [of_call(r, k) for k in range(on_ranks.WIRE_CALLS)]}

        mine = {"wire": [reply(r) for r in range(N)], "seen": Seen(wire_bytes=int(1e6 * seen))}
        return judge_replies("lab10.wire", mine, {"wire": [], "seen": Seen(wire_bytes=10**6)})

    assert judged(most).points == judged(most, messages=4).points == 4
    assert judged(most + 1).points == judged(most, messages=5).points == 0
    assert judged(0).points == 0 and "less than the codes have" in judged(0).cause
    for seen, points in ((0.231, 4), (0.229, 0), (0.289, 4), (0.291, 0)):
        assert judged(most, seen=seen).points == points


def test_sends_and_receives_count_as_messages_to_each_other_rank():
    by_hand = [("send", 1.0)] * (N - 1) + [("recv", 0.0)] * (N - 1)
    assert judge_wire.n_messages(by_hand, N) == 1 and judge_wire.n_messages([*by_hand, ("all_reduce", 8.0)], N) == 2


def test_what_is_not_finite_must_reach_its_owner_and_be_gone():
    instance = draw.one_instance(SEED, N, rows=20)
    problems = [judge_unbiased.problem_of(instance, SEED + k, N) for k in range(len(on_ranks.POISONS))]

    def judged(change=lambda call, rank, reply: None):
        replies = []
        for rank in range(N):
            calls = []
            for call in range(len(on_ranks.POISONS)):
                here = rank == call % N
                mine, before = (
                    on_ranks.packed((p.near.sum(0) / N)[instance.cuts[rank] : instance.cuts[rank + 1]])
                    for p in (problems[call], problems[0])
                )
                reply = {"form": "", "here": here, "shown": here, "good": mine, "before": before}
                change(call, rank, reply)
                calls.append(reply)
            replies.append(calls)
        return judge_replies("lab10.finite", {"poisoned": replies})

    assert judged().points == 1
    for call in range(len(on_ranks.POISONS)):
        hidden = judged(lambda c, rank, reply, call=call: reply.update(shown=False) if c == call else None)
        assert hidden.points == 0 and "its element is finite" in hidden.cause
        length = instance.cuts[3] - instance.cuts[2]
        for value, words in ((torch.nan, "elements of the mean are not finite"), (0.0, "no mean of neighbours")):
            good = on_ranks.packed(torch.full((length,), value, dtype=torch.float64))
            left = judged(
                lambda c, rank, reply, call=call, good=good: reply.update(good=good) if (c, rank) == (call, 2) else None
            )
            assert left.points == 0 and words in left.cause


@pytest.mark.parametrize("answer", [None, 3, [], torch.ones(3), [torch.ones(2, 2).double()], [torch.ones(4)]])
def test_what_a_gather_returns_in_place_of_weights_is_said(answer):
    assert "`gather` returned" in on_ranks._wrong_form(answer, [(2, 2)])
    assert "`reduce` returned" in on_ranks._wrong_slice(answer, 4)
