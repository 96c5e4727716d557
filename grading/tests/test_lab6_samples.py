"""Lab 6 before the referee: programs that are repaired, half repaired and wrongly repaired; and its judges alone."""

from types import SimpleNamespace

import pytest
from submissions import checks_that_nothing_needs, class_of, try_sample

from grading.checks.lab6_profile import mistakes, prefetch, reading, throughput
from grading.checks.lab6_profile.traces import bounds, draw_trace, figures_of, gathers_of_units, moments
from grading.race import Lap
from grading.timing import Timing
from shardlab.measure.timeline import Span, Timeline

LAB = "lab6_profile"
QUICK = ("no_prefetch",)


@pytest.mark.parametrize("sample", class_of(LAB, QUICK))
def test_sample_gets_its_points_and_its_cause(sample, answers, referees, monkeypatch):
    monkeypatch.setattr("grading.session.SHORTEST_DEADLINE_S", 6.0)  # for the one that hangs
    monkeypatch.setattr("grading.session.DEADLINE_RATIO", 8.0)
    try_sample(sample, answers(sample), referees(LAB))


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


@pytest.mark.parametrize("words, figures", mistakes.MISTAKES.items())
def test_every_usual_mistake_is_wrong_and_is_told(words, figures):
    drawn = reading.traces(11)
    found = [figures_of(t) | figures(t) for t in drawn]
    session = SimpleNamespace(seed=11, order=lambda *_, **__: [found])
    verdict = reading.judge_shares(session, "lab6.shares", 4)
    assert verdict.points < 4
    assert words in verdict.cause


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
