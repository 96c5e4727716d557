"""Lab 6 before the referee: programs that are repaired, half repaired and wrongly repaired; and its judges alone."""

import inspect
import json
from functools import partial
from itertools import product

import pytest
import torch
from submissions import checks_that_nothing_needs, class_of, concerned, judge_replies, surprises_of, try_sample

from grading.checks.lab6_profile import (
    judge_memory_and_messages,
    judge_prefetch,
    judge_same_training,
    judge_throughput,
    on_ranks,
)
from grading.judge.tensor_projections import distance
from grading.judge.timed_laps import Lap
from grading.judge.timing_verdict import Timing
from grading.samples.sample import read_lab, samples

ONE_RANK = ("lab6.shares", "lab6.hidden")  # checks whose drills need no other
LAB = "lab6_profile"


@pytest.mark.parametrize("sample", class_of(LAB))
def test_sample_gets_its_points_and_its_cause(sample, answers, referees, monkeypatch):
    monkeypatch.setattr("grading.judge.session.SHORTEST_DEADLINE_S", 6.0)  # for the one that hangs
    monkeypatch.setattr("grading.judge.session.DEADLINE_RATIO", 8.0)
    try_sample(sample, answers(sample), referees(LAB))


@pytest.mark.parametrize("sample", concerned(LAB, ONE_RANK))
def test_sample_gets_its_points_where_one_rank_is_asked(sample, answers, unboxed):
    assert surprises_of(sample, answers(sample), unboxed(LAB), ONE_RANK) == []


def test_every_check_stops_a_sample_that_no_other_check_stops():
    assert checks_that_nothing_needs(LAB) == set()


def _reply(*gathers: tuple[str, float], n_layers: int = 4, micro_batches: int = 2) -> dict:
    """Micro-batches of some blocks; computation number i begins at i."""
    names = [f"blocks.{i}" for i in range(n_layers)]
    phases = [(name, "forward") for name in names] + [(name, "backward") for name in reversed(names)]
    return {"gathers": gathers, "computed": [[*one, float(i)] for i, one in enumerate(micro_batches * phases)]}


@pytest.mark.parametrize(
    "gathers, forward, backward",
    [
        ([("root", -0.5), ("blocks.0", -0.5), ("blocks.1", -0.5)], [], []),  # before block 0 computes
        ([("blocks.0", -0.5), ("blocks.1", 0.5), ("blocks.2", 1.5)], ["blocks.1", "blocks.2"], []),
        ([("blocks.3", 3.5), ("blocks.2", 4.5)], [], ["blocks.2"]),
        ([("blocks.0", -0.5), ("blocks.0", 7.5)], [], []),  # one in either micro-batch
        ([("blocks.2", 9.5)], ["blocks.2"], []),  # the only late one, and not the first block
        ([("blocks.1.attention.query", 1.2), ("blocks.2.feed_forward.up", 1.5)], ["blocks.1", "blocks.2"], []),
    ],
)
def test_a_block_is_late_when_nothing_computes_before_it(gathers, forward, backward):
    assert judge_prefetch.late_blocks(_reply(*gathers), 4) == {"forward": forward, "backward": backward}


@pytest.mark.parametrize(
    "low, high, points, inconclusive",
    [(0.9, 1.1, 4, False), (1.3, 1.5, 2, False), (1.8, 2.5, 0, False), (1.1, 1.3, 0, True), (1.5, 1.8, 0, True)],
)
def test_half_way_gets_half(low, high, points, inconclusive):
    verdict = judge_throughput.verdict_of("lab6.throughput", 4, Timing((low + high) / 2, low, high, 1, 1, 10))
    assert (verdict.points, verdict.inconclusive) == (points, inconclusive)


def test_a_lap_that_is_over_before_its_blocks_could_have_computed_is_told():
    reply = {"slept": [16, 16], "moved": {}}
    assert (
        judge_throughput.not_done(Lap(1, [reply] * 4, 0.40))
        == "one took 0.40 s, and its blocks take 0.48 s to compute."
    )
    reply["slept"] = [15, 16]
    assert "15 forwards of blocks computed" in judge_throughput.not_done(Lap(1, [reply] * 4, 0.47))


def test_the_proof_of_a_lap_does_not_follow_from_proofs_of_what_the_ranks_have():
    """Else a lap could go without reducing gradients."""
    draw = torch.Generator().manual_seed(1)
    parts = [{str(i): torch.randn(500, generator=draw) for i in range(8)} for _ in range(4)]
    of_parts = [on_ranks.waves_of(part, 7) for part in parts]
    whole = on_ranks.waves_of({name: sum(part[name] for part in parts) for name in parts[0]}, 7)
    names = {kind: [n for n in sorted(whole) if ("magnitudes" in n) == kind] for kind in (False, True)}
    added = {kind: torch.tensor([sum(waves[n] for waves in of_parts) for n in ns]) for kind, ns in names.items()}
    due = {kind: torch.tensor([whole[n] for n in ns]) for kind, ns in names.items()}
    assert distance(added[False], due[False]) < 1e-4
    assert distance(added[True], due[True]) > 10 * judge_throughput.PROOF_TOLERANCE


def _asked(
    forward_late: int, backward_late: int, spoilt_rank: int, *, length=3, step=0, left_out=0, missing=""
) -> list:
    """Two steps of five and six blocks, of which one rank asks late in the last micro-batch of one step."""
    n_layers, (many, one) = judge_prefetch.shape_of(1)
    assert (n_layers, many, one) == (6, length, 1)
    whole = [(f"blocks.{i}", -0.5) for i in range(n_layers) if f"blocks.{i}" != missing]
    usual = [_reply(*whole, n_layers=n_layers, micro_batches=m) for m in (many, one)]
    spoilt = [reply | {"computed": reply["computed"][: len(reply["computed"]) - left_out]} for reply in usual]
    begin = 2 * n_layers * ((many, one)[step] - 1)
    late = [begin + 1 + i for i in range(forward_late)] + [begin + n_layers + 1 + i for i in range(backward_late)]
    places = usual[step]["computed"]
    spoilt[step] = spoilt[step] | {"gathers": [*usual[step]["gathers"], *((places[i][0], i - 0.5) for i in late)]}
    return [spoilt if r == spoilt_rank else usual for r in range(4)]


@pytest.mark.parametrize("step", (0, 1))
def test_who_asks_in_time_in_backward_alone_gets_half(step):
    for rank in range(4):
        found = {}
        for late in product((0, 1), repeat=2):
            verdict = judge_replies("lab6.prefetch", {"asked": _asked(*late, rank, step=step)})
            found[late] = (verdict.points, verdict.cause.partition(" blocks are asked for")[0])
        assert found == {
            (0, 0): (2, "blocks are asked for while others compute."),
            (1, 0): (1, "in forward"),
            (0, 1): (0, "in backward"),
            (1, 1): (0, "in forward and backward"),
        }
        few = judge_replies("lab6.prefetch", {"asked": _asked(0, 0, rank, left_out=1)})
        assert (few.points, "35 forwards and backwards" in few.cause) == (0, True)


def test_a_block_that_is_never_gathered_is_named():
    for block in ("blocks.0", "blocks.5"):
        verdict = judge_replies("lab6.prefetch", {"asked": _asked(0, 0, 0, missing=block)})
        assert (verdict.points, f"no all_gather of {block}:" in verdict.cause) == (0, True)
    inside = _reply(("blocks.0.up", -0.5), n_layers=1)
    assert judge_prefetch.never_gathered(inside, 1) == []


# The other judges alone


def _account(
    check: str, peak=0, kept=0, messages=0, sent=0, gathered=0, reduced=0, forwards=16, not_sharded=(), rank=1, step=0
):
    """Judge three steps on four ranks, one of which is beyond its budgets in one step."""

    def reply(off):
        budget, least = on_ranks.BUDGETS, judge_memory_and_messages.LEAST_BYTES
        return {
            "peak": {"activations": budget["peak_bytes"] + off * peak - 100, "gradients": 100},
            "kept": {"parameters": budget["kept_bytes"] + off * kept},
            "kinds": {"all_gather": budget["messages"] - 10 + off * messages, "reduce_scatter": 10},
            "sent": budget["sent_bytes"] + off * (sent or 1e-6),
            "sent_by": {"all_gather": least - off * gathered, "reduce_scatter": least - off * reduced},
            "forwards": forwards if off else 16,
            "units": 5,
            "not_sharded": list(not_sharded),
        }

    return judge_replies(
        check, {"record_step": [[reply(int((r, i) == (rank, step))) for i in range(3)] for r in range(4)]}
    )


def test_memory_and_messages_stay_within_the_budgets_on_every_rank_in_every_step():
    assert _account("lab6.messages", sent=-1).points == 2
    for place in ({"rank": rank, "step": step} for rank in range(4) for step in range(3)):
        assert _account("lab6.memory", **place).points == 2
        peak, kept = _account("lab6.memory", peak=1, **place), _account("lab6.memory", kept=1, **place)
        assert (peak.points, "too much at the peak: held then are activations" in peak.cause) == (0, True)
        assert (kept.points, "All parameters are sharded then" in kept.cause) == (0, True)
        kept = _account("lab6.memory", kept=1, not_sharded=["head.weight"], **place)
        assert (kept.points, "Not sharded over all 4 ranks then: 1 parameters, e.g. head.weight" in kept.cause) == (
            0,
            True,
        )
        assert _account("lab6.messages", messages=1, sent=-1, **place).points == 1
        assert _account("lab6.messages", sent=1, **place).points == 1
        assert _account("lab6.messages", sent=1, messages=1, **place).points == 0
        for few, words in (({"gathered": 1}, "to gather each parameter"), ({"reduced": 1}, "to reduce each gradient")):
            less = _account("lab6.messages", sent=-1, **few, **place)
            assert (less.points, words in less.cause) == (0, True)
        for check in ("lab6.memory", "lab6.messages"):
            few = _account(check, forwards=15, **place)
            assert (few.points, "15 forwards of blocks in a step" in few.cause) == (0, True)


def test_the_models_bytes_are_those_that_the_bounds_are_made_of():
    model = on_ranks.make_model(0, on_ranks.N_LAYERS)
    assert sum(p.nbytes for p in model.parameters()) == on_ranks.MODEL_BYTES
    assert judge_memory_and_messages.LEAST_BYTES == 640_704  # as the text says


def test_the_slow_program_is_the_notebooks():
    cells = [cell.source.strip() for cell in read_lab("labs", LAB).cells]
    assert "\n\n\n".join(map(str.rstrip, map(inspect.getsource, on_ranks.REFERENCE["laps"]))) in cells


SHAPES = judge_same_training.shapes_of(1)


@pytest.fixture(scope="module")
def moves():
    """They are the judge's, too, and worked out once."""
    truths = [judge_same_training.truth_of(1, **shape) for shape in SHAPES]
    parts = judge_same_training.parts_of(1, SHAPES[0]["n_layers"], SHAPES[0]["lengths"][0])
    kept = judge_same_training.truth_of(1, **SHAPES[0], kept=True)
    return truths, parts, kept


def _same(truths, first, *others, second=None, loss=0.0, with_gradient=(3,), shape=0, short=None, parts=None):
    """What is said of ranks whose weights move so in the first step of a shape: all alike, or each in its own way."""

    def replies(seed, n_layers, lengths):
        i = next(i for i, s in enumerate(SHAPES) if s == {"n_layers": n_layers, "lengths": lengths})
        moved = [truths[i].moved] * 4
        if i == shape:
            later = [truths[i].moved[1] if second is None else second, *truths[i].moved[2:]]
            moved = [[v, *later] for v in (first, *(others or [first] * 3))]
        return [
            [
                {"moved": {"all": v.tolist()}, "loss": right + loss, "with_gradient": with_gradient}
                for v, right in zip(rank, truths[i].losses, strict=True)
            ]
            for rank in moved
        ]

    with pytest.MonkeyPatch.context() as patch:
        known = {json.dumps(s): t for s, t in zip(SHAPES, truths, strict=True)}
        patch.setattr(
            judge_same_training,
            "truth_of",
            lambda seed, kept=False, **s: short if kept and short else known[json.dumps(s)],
        )
        if parts:
            patch.setattr(judge_same_training, "parts_of", lambda *_: parts)
        return judge_replies("lab6.same", {"steps": replies})


def test_lists_and_models_of_other_sizes_are_drawn():
    for seed in range(12):
        long, short = judge_same_training.shapes_of(seed)
        assert (long["n_layers"] < 4 < short["n_layers"], 1 in long["lengths"], short["lengths"][0]) == (True, True, 1)
        assert long["lengths"][0] not in (1, on_ranks.WORLD_SIZE)  # else a wrong factor could be either


def test_the_program_moves_weights_as_before_and_says_the_mean_loss(moves):
    truths, parts, kept = moves
    tell = partial(_same, truths, parts=parts)
    right, tolerance, m = truths[0].moved[0], judge_same_training.TOLERANCE, SHAPES[0]["lengths"][0]
    within = tell((1 + 0.9 * tolerance) * right, loss=0.9 * judge_same_training.LOSS_TOLERANCE)
    assert tell(right).points == within.points == 3
    half = tell(right, loss=1.1 * judge_same_training.LOSS_TOLERANCE)
    assert (half.points, "the loss is not the mean" in half.cause) == (1.5, True)
    said = {
        "the number of ranks": tell(4 * right),
        "one over the number of ranks": tell(right / 4),
        "the number of micro-batches": tell(m * right),
        "one over the number of micro-batches": tell(right / m),
        "do not move as before": tell(right.flip(0)),
        "different weights after the first step": tell(right, right, right, (1 + 2 * tolerance) * right),
        "and step 2, of 1 micro-batches, is not": tell(right, second=1.002 * truths[0].moved[1]),
        "of the steps before are still in it": tell(right, second=kept.moved[1], short=kept),
        "do not move in step 2": tell(right, second=0 * right),
        "no parameter has a gradient": tell(0 * right, with_gradient=[0]),
        "makes no step": tell(0 * right, with_gradient=[]),
        "3 parameters have gradients": tell(0 * right),
        "with 6 blocks and lists of 1, then 3 micro-batches, the weights do not move": tell(
            0 * truths[1].moved[0], shape=1
        ),
        "not finite": tell(float("nan") * right),
        "gradients are reduced twice": tell(parts.thinned),
        "only number 2 counts": tell(parts.only(micro_batch=2)),
        "micro-batch 1 of 3 does not count": tell(parts.only() - parts.only(micro_batch=1)),
        "only one rank's micro-batches count": tell(parts.only(rank=2)),
    }
    assert {words: v.cause for words, v in said.items() if v.points or words not in v.cause} == {}


def test_the_solution_stays_within_its_budgets_on_ranks(answers, unboxed):
    right = next(s for s in samples(LAB) if s.name == "right")
    referee = unboxed(LAB)
    assert referee.judge(answers(right), only="lab6.messages")[0].passed
