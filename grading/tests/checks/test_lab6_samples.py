"""Lab 6 before the referee: programs that are repaired, half repaired and wrongly repaired; and its judges alone."""

from itertools import product
from types import SimpleNamespace

import pytest
import torch
from submissions import checks_that_nothing_needs, class_of, concerned, judge_replies, surprises_of, try_sample

from grading.checks.lab6_profile import on_ranks, prefetch, reading, same, throughput, wrong_figures
from grading.checks.lab6_profile.traces import bounds, draw_trace, figures_of, gathers_of_units, moments
from grading.judge.timed_laps import Lap
from grading.judge.timing_verdict import Timing
from grading.samples import samples
from shardtrace.timeline import Span, Timeline

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


# ------------------------------------------------------------------------------------------------------------ part 1


def test_shares_are_those_that_the_library_finds_where_collectives_take_turns():
    trace = draw_trace(3, plain=True)
    start, end = bounds(trace)
    line = _timeline(trace)
    figures = figures_of(trace)
    for kind in ("all_gather", "reduce_scatter"):
        assert figures[kind] == pytest.approx(line.exposed_of(kind) / (end - start))
    assert figures["computes"] == pytest.approx(line.compute_s / (end - start))


def test_a_crowded_trace_has_overlaps_and_crosses_edges():
    trace = draw_trace(4, plain=False)
    mine = [e for e in trace["events"] if e["ph"] == "X" and e["pid"] == trace["rank"]]
    start, end = bounds(trace)
    link = sorted((e["ts"], e["ts"] + e["dur"]) for e in mine if e["cat"] == "link")
    assert any(a < start < b for a, b in link)
    assert any(a < end < b for a, b in link)
    assert sum(b - a for a, b in link if a > start and b < end) > sum(b - a for a, b in moments(trace, "link"))


@pytest.mark.parametrize("seed", [56, 170])  # as first drawn, nothing was exposed there
def test_one_unit_is_waited_for_longest(seed):
    *_, second, longest = sorted(gathers_of_units(draw_trace(seed, plain=True), exposed=True).values())
    assert longest >= max(1.1 * second, 500)


PARTS = {
    "lab6.shares": (4, reading.judge_shares, wrong_figures.OF_SHARES),
    "lab6.hidden": (2, reading.judge_hidden, wrong_figures.OF_HIDDEN | wrong_figures.OF_UNIT),
}
MISTAKES = [(check, words) for check, (*_, usual) in PARTS.items() for words in usual]


def _read(check: str, found: list[dict], seed: int = 11):
    points, judge, _ = PARTS[check]
    return judge(SimpleNamespace(seed=seed, order=lambda *_, **__: [found]), check, points)


@pytest.mark.parametrize("check, words", MISTAKES)
def test_every_usual_mistake_is_wrong_and_is_told(check, words):
    mistake = PARTS[check][2][words]
    verdict = _read(check, [figures_of(t) | mistake(t) for t in reading.traces(11)])
    assert verdict.points < verdict.max_points
    assert words in verdict.cause


@pytest.mark.parametrize("figure", ("computes", "all_gather", "reduce_scatter", "rest", "hidden"))
def test_a_figure_counts_as_right_within_a_thousandth(figure):
    right = [figures_of(t) for t in reading.traces(11)]
    check = "lab6.hidden" if figure == "hidden" else "lab6.shares"
    for off, is_right in ((0.0009, True), (-0.0009, True), (0.0011, False), (-0.0011, False)):
        for i in range(len(right)):
            found = [r | {figure: r[figure] + off * (j == i)} for j, r in enumerate(right)]
            assert _read(check, found).passed == is_right
    found = [r | {figure: float("nan")} for r in right]
    assert (_read(check, found).points, f"not a finite number: {figure!r}." in _read(check, found).cause) == (0, True)


@pytest.mark.parametrize("seed", range(3))
def test_the_traces_tell_readers_apart_that_get_one_word_wrong(seed):
    """Each sample of part 1 gets the points of its table whatever is drawn; boxes and ranks are not asked."""
    for sample in samples(LAB):
        if sample.blank or not set(sample.points) & set(ONE_RANK):
            continue
        names = {"torch": torch}
        exec(next(c.source for c in sample.notebook().cells if c.metadata.nbgrader.grade_id == "read_step"), names)
        found = on_ranks.read(names["read_step"], reading.traces(seed))
        for check in ONE_RANK:
            verdict = _read(check, found, seed)
            assert verdict.points == sample.points.get(check, verdict.max_points), (sample.name, verdict.text())


def _timeline(trace: dict) -> Timeline:
    start, end = bounds(trace)
    mine = [e for e in trace["events"] if e["ph"] == "X" and e["pid"] == trace["rank"] and e["cat"] != "step"]
    spans = (Span(e["cat"], e["name"].split()[0], e["ts"], e["ts"] + e["dur"]) for e in mine)
    return Timeline(0, tuple(spans)).within(start, end)


# ------------------------------------------------------------------------------------------------------------ part 2


def _reply(*gathers: tuple[str, float]) -> dict:
    """Two micro-batches of 4 blocks; computation number i begins at i."""
    names = [f"blocks.{i}" for i in range(4)]
    phases = [(name, "forward") for name in names] + [(name, "backward") for name in reversed(names)]
    return {"gathers": gathers, "computed": [[*one, float(i)] for i, one in enumerate(2 * phases)]}


@pytest.mark.parametrize(
    "gathers, forward, backward",
    [
        (
            [("root", -0.5), ("blocks.0", -0.5), ("blocks.1", -0.5)],
            1,
            0,
        ),  # block 1 is asked for before block 0 computes
        ([("blocks.0", -0.5), ("blocks.1", 0.5), ("blocks.2", 1.5)], 3, 0),
        ([("blocks.3", 3.5), ("blocks.2", 4.5)], 0, 2),
        ([("blocks.0", -0.5), ("blocks.0", 7.5)], 1, 0),  # one in either micro-batch
        ([("blocks.1.attention.query", 1.2), ("blocks.2.feed_forward.up", 1.5)], 2, 0),  # while it computes; next
    ],
)
def test_a_block_is_late_when_nothing_computes_before_it(gathers, forward, backward):
    assert prefetch.late_blocks(_reply(*gathers)) == {"forward": forward, "backward": backward}


@pytest.mark.parametrize(
    "low, high, points, inconclusive",
    [(0.9, 1.1, 4, False), (1.3, 1.5, 2, False), (1.8, 2.5, 0, False), (1.1, 1.3, 0, True), (1.5, 1.8, 0, True)],
)
def test_half_way_gets_half(low, high, points, inconclusive):
    verdict = throughput.verdict_of("lab6.throughput", 4, Timing((low + high) / 2, low, high, 1, 1, 10))
    assert (verdict.points, verdict.inconclusive) == (points, inconclusive)


def test_a_lap_that_is_over_before_its_blocks_could_have_computed_is_told():
    reply = {"slept": [16, 16], "moved": {}}
    assert throughput.not_done(Lap(1, [reply] * 4, 0.40)) == "one took 0.40 s, and its blocks take 0.48 s to compute."
    reply["slept"] = [15, 16]
    assert "15 forwards of blocks computed" in throughput.not_done(Lap(1, [reply] * 4, 0.47))


def _asked(forward_late: int, backward_late: int, spoilt_rank: int, computed: int = 32) -> list[dict]:
    """Four micro-batches, of which one rank asks late in the second: beside each first block, for so many."""
    names = [f"blocks.{i}" for i in range(on_ranks.N_LAYERS)]
    order = [(name, "forward") for name in names] + [(name, "backward") for name in reversed(names)]
    starts = [[*one, float(i)] for i, one in enumerate(on_ranks.N_MICRO_BATCHES * order)]
    late = range(9, 9 + forward_late), range(13, 13 + backward_late)
    gathers = [("blocks.0", -0.5)] + [(starts[i][0], i - 0.5) for places in late for i in places]
    spoilt = {"gathers": gathers, "computed": starts[:computed]}
    usual = {"gathers": [("blocks.0", -0.5)], "computed": starts}
    return [spoilt if r == spoilt_rank else usual for r in range(4)]


def test_who_asks_in_time_in_backward_alone_gets_half():
    for rank in range(4):
        found = {}
        for late in product((1, 2), repeat=2):
            verdict = judge_replies("lab6.prefetch", {"asked": _asked(*late, rank)})
            found[late] = (verdict.points, verdict.cause.partition(" blocks are asked for")[0])
        assert found == {
            (1, 1): (2, "blocks are asked for while others compute."),
            (2, 1): (1, "in forward"),
            (1, 2): (0, "in backward"),
            (2, 2): (0, "in forward and backward"),
        }
        few = judge_replies("lab6.prefetch", {"asked": _asked(0, 0, rank, computed=31)})
        assert (few.points, "31 forwards and backwards" in few.cause) == (0, True)


# The other judges alone


def _account(check: str, peak=0, kept=0, messages=0, sent=0, forwards=16, rank=1):
    """Of one rank, beyond its budgets."""

    def reply(off):
        budget = on_ranks.BUDGETS
        return {
            "peak": {"activations": budget["peak_bytes"] + off * peak - 100, "gradients": 100},
            "kept": {"parameters": budget["kept_bytes"] + off * kept},
            "kinds": {"all_gather": budget["messages"] - 10 + off * messages, "reduce_scatter": 10},
            "sent": budget["sent_bytes"] + off * (sent or 1e-6),
            "forwards": forwards if off else 16,
            "units": 5,
        }

    return judge_replies(check, {"record_step": [reply(int(r == rank)) for r in range(4)]})


def test_memory_and_messages_stay_within_the_budgets_on_every_rank():
    assert _account("lab6.messages", sent=-1).points == 2
    for rank in range(4):
        assert _account("lab6.memory", rank=rank).points == 2
        peak, kept = _account("lab6.memory", peak=1, rank=rank), _account("lab6.memory", kept=1, rank=rank)
        assert (peak.points, "too much at the peak" in peak.cause) == (0, True)
        assert (kept.points, "they are not sharded" in kept.cause) == (0, True)
        assert _account("lab6.messages", sent=1, rank=rank).points == 1
        assert _account("lab6.messages", sent=1, messages=1, rank=rank).points == 0
        for check in ("lab6.memory", "lab6.messages"):
            few = _account(check, forwards=15, rank=rank)
            assert (few.points, "15 forwards of blocks in a step" in few.cause) == (0, True)


SHAPE = {"n_layers": 3, "n_micro_batches": 4}  # of seed 1


@pytest.fixture
def moves(monkeypatch):
    """They are the judge's, too, and worked out once."""
    truth, parts = same.truth_of(1, **SHAPE), same.parts_of(1, **SHAPE)
    asked = {"seed": 1} | SHAPE
    for name, found in (("truth_of", truth), ("parts_of", parts)):
        monkeypatch.setattr(same, name, lambda seed, found=found, **shape: {"seed": seed} | shape == asked and found)
    return truth, parts


def _same(truth, first, *others, second=None, loss=0.0):
    """What is said of ranks whose weights move so in the first step: all alike, or each in its own way."""
    steps = [[v, truth.moved[1] if second is None else second] for v in (first, *(others or [first] * 3))]
    replies = [
        [{"moved": {"all": v.tolist()}, "loss": right + loss} for v, right in zip(rank, truth.losses, strict=True)]
        for rank in steps
    ]
    return judge_replies("lab6.same", {"steps": replies})


def test_the_program_moves_weights_as_before_and_says_the_mean_loss(moves):
    truth, parts = moves
    right = truth.moved[0]
    assert _same(truth, right).points == _same(truth, 1.0009 * right, loss=0.0009).points == 3
    half = _same(truth, right, loss=0.0011)
    assert (half.points, "the loss is not the mean" in half.cause) == (1.5, True)
    said = {
        "the number of": _same(truth, 4 * right),
        "one over the number of": _same(truth, right / 4),  # micro-batches, or ranks: there are four of both
        "do not move as those": _same(truth, right.flip(0)),
        "the ranks ended with different weights": _same(truth, right, right, right, 1.002 * right),
        "the first step is right and the second is not": _same(truth, right, second=1.002 * truth.moved[1]),
        "the weights do not move: ": _same(truth, 0 * right),
        "not finite": _same(truth, float("nan") * right),
        "gradients are reduced twice": _same(truth, parts.thinned),
        "only number 2 counts": _same(truth, parts.only(micro_batch=2)),
        "micro-batch 1 of 4 does not count": _same(truth, parts.only() - parts.only(micro_batch=1)),
        "only one rank's micro-batches count": _same(truth, parts.only(rank=2)),
    }
    assert {words: v.cause for words, v in said.items() if v.points or words not in v.cause} == {}


def test_the_solution_stays_within_its_budgets_on_ranks(answers, unboxed):
    right = next(s for s in samples(LAB) if s.name == "right")
    referee = unboxed(LAB)
    assert referee.judge(answers(right), only="lab6.messages")[0].passed
