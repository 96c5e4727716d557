"""Lab 6, part 1: traces that tell readers apart, and the judges of what is read."""

import copy
from types import SimpleNamespace

import pytest
import torch

from grading.checks.lab6_profile import judge_reading, on_ranks
from grading.judge.reference_lookup import OurAnswers
from grading.references import lab6_profile
from grading.references.lab6_profile import wrong_figures
from grading.references.lab6_profile.draw_trace_and_figures import (
    bounds,
    draw_trace,
    figures_of,
    gathers_of_units,
    moments,
)
from grading.samples.sample import samples
from shardtrace.timeline import Span, Timeline

LAB = "lab6_profile"


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
    "lab6.shares": (4, judge_reading.judge_shares, wrong_figures.OF_SHARES),
    "lab6.hidden": (2, judge_reading.judge_hidden, wrong_figures.OF_HIDDEN | wrong_figures.OF_UNIT),
}
MISTAKES = [(check, words) for check, (*_, usual) in PARTS.items() for words in usual]


def _read(check: str, found: list[dict], seed: int = 11):
    points, judge, _ = PARTS[check]
    solve = OurAnswers(lab6_profile.__name__).solve
    return judge(SimpleNamespace(seed=seed, solve=solve, order=lambda *_, **__: [found]), check, points)


@pytest.mark.parametrize("check, words", MISTAKES)
def test_every_usual_mistake_is_wrong_and_is_told(check, words):
    mistake = PARTS[check][2][words]
    verdict = _read(check, [figures_of(t) | mistake(t) for t in lab6_profile.drawn(11)["traces"]])
    assert verdict.points < verdict.max_points
    assert words in verdict.cause


@pytest.mark.parametrize("figure", ("computes", "all_gather", "reduce_scatter", "rest", "hidden"))
def test_a_figure_counts_as_right_within_a_thousandth(figure):
    right = [figures_of(t) for t in lab6_profile.drawn(11)["traces"]]
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
        if sample.blank or not set(sample.points) & set(PARTS):
            continue
        names = {"torch": torch}
        exec(next(c.source for c in sample.notebook().cells if c.metadata.nbgrader.grade_id == "read_step"), names)
        traces = copy.deepcopy(lab6_profile.drawn(seed)["traces"])  # some change the events
        found = on_ranks.read(names["read_step"], traces)
        for check in PARTS:
            verdict = _read(check, found, seed)
            assert verdict.points == sample.points.get(check, verdict.max_points), (sample.name, verdict.text())


def _timeline(trace: dict) -> Timeline:
    start, end = bounds(trace)
    mine = [e for e in trace["events"] if e["ph"] == "X" and e["pid"] == trace["rank"] and e["cat"] != "step"]
    spans = (Span(e["cat"], e["name"].split()[0], e["ts"], e["ts"] + e["dur"]) for e in mine)
    return Timeline(0, tuple(spans)).within(start, end)


@pytest.mark.parametrize(
    "returned, words",
    [
        (None, "must return a dictionary, not NoneType"),
        ((1, 2), "must return a dictionary, not tuple"),
        ({"hidden": None}, "'hidden' must be a number, and is None"),
        ({"rest": "most"}, "'rest' must be a number, and is 'most'"),
        ({"computes": 10**400}, "'computes' must be a number"),
    ],
)
def test_what_is_no_figure_is_named(returned, words):
    with pytest.raises(TypeError, match=words):
        on_ranks.read(lambda events, rank, step: returned, [draw_trace(1, plain=True)])


def test_a_figure_that_is_left_out_is_named():
    right = [figures_of(t) for t in lab6_profile.drawn(11)["traces"]]
    for check, key in (("lab6.shares", "rest"), ("lab6.hidden", "unit")):
        verdict = _read(check, [{k: v for k, v in r.items() if k != key} for r in right])
        assert (verdict.points, f"has no {key!r}" in verdict.cause) == (0, True)
