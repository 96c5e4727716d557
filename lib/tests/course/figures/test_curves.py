"""Predicted curves beside measured points: it shows the numbers that it was given, and everybody can read it."""

import legible
import pytest

from shardcourse import figures
from shardcourse.figures.style import BLUE, ORANGE, TEXT

PREDICTED = {"stage 1": {1: 1.0, 2: 1.3, 1024: 2.0}, "stage 2": {1: 1.0, 2: 1.6, 1024: 4.0}}
MEASURED = {"measured, stage 1": {2: 1.31, 4: 1.6}, "measured, stage 2": {2: 1.6}}


@pytest.fixture
def fig():
    levels = {"the limit": 8.0}
    return figures.curves_beside_points(PREDICTED, MEASURED, "ranks", "ratio", levels=levels, log_x=True, title="T")


def lines(fig, color):
    return [dict(zip(*line.get_data(), strict=True)) for line in fig.axes[0].lines if line.get_color() == color]


def test_it_shows_the_numbers(fig):
    level, *curves, in_legend = lines(fig, TEXT)
    assert curves == list(PREDICTED.values())
    assert in_legend == {}
    assert set(level.values()) == {8.0}
    assert [lines(fig, BLUE), lines(fig, ORANGE)] == [[curve] for curve in MEASURED.values()]


def test_ticks_stand_where_something_was_measured_and_at_the_end(fig):
    fig.draw_without_rendering()
    assert list(fig.axes[0].get_xticks()) == [2, 4, 1024]
    half = figures.curves_beside_points({"p": {12.5: 1.0, 1600: 2.0}}, {"m": {12.5: 1.0}}, "MiB", "ms", log_x=True)
    half.draw_without_rendering()
    assert [t.get_text() for t in half.axes[0].get_xticklabels()] == ["12.5", "1600"]


def test_names_stand_at_the_ends_of_their_curves(fig):
    heights = {t.get_text(): t.xy[1] for t in fig.axes[0].texts}
    assert heights == pytest.approx({"stage 1": 2.0, "stage 2": 4.0, "the limit": 8.0}, abs=0.5)
    assert {"measured, stage 1", "ranks", "ratio"} <= {t.get_text() for t in legible.texts(fig)}


def test_it_can_be_read(fig):
    assert legible.problems(fig) == []
    one = figures.curves_beside_points(
        {"predicted": {1: 5.0, 12: 2.0}}, {"measured": {1: 5.1, 12: 2.1}}, "ranks", "MiB"
    )
    assert legible.problems(one) == []


def test_a_curve_that_ends_early_has_its_name_at_its_own_end():
    fig = figures.curves_beside_points(
        {"long": {1: 5.0, 32: 2.0}, "short": {1: 1.0, 8: 6.0}}, {"short": {8: 6.1}}, "ranks", "MiB", log_x=True
    )
    name = next(t for t in fig.axes[0].texts if t.get_text() == "short")
    assert name.xy == (8, 6.0)
    assert legible.problems(fig) == []


def test_a_linear_axis_with_two_measured_places_has_ticks_between_them():
    fig = figures.curves_beside_points(
        {"predicted": {64: 1.0, 1100: 9.0}}, {"measured": {128: 2.0, 1024: 8.0}}, "a", "MB"
    )
    assert len(fig.axes[0].get_xticks()) > 4
    assert not fig.axes[0].texts, "the legend names the curve that is called predicted"


def test_the_legend_of_rising_curves_is_not_beside_their_last_point():
    """A lone point at the upper right lay in one line with the legend's entries, and looked like a part of it."""
    rising, lone = {1: 2.7, 2: 5.0, 4: 8.3, 12: 16.8}, {12: 20.9}
    fig = figures.curves_beside_points({"p": rising}, {"m": rising, "lone": lone}, "H", "tokens", log_x=True)
    fig.draw_without_rendering()
    (ax,) = fig.axes
    box, point = ax.get_legend().get_window_extent(), ax.transData.transform((12, 20.9))
    assert box.x1 < point[0] - 100
