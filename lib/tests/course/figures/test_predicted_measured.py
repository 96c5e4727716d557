"""Predicted beside measured: it shows the numbers that it was given, each in the row of its name."""

import legible
import pytest

from shardcourse import figures

PREDICTED = {"as it is": 0.9, "repaired": 0.5, "not tried": 0.7}
MEASURED = {"as it is": 1.0, "repaired": 0.55, "a surprise": 0.2}


def drawn(measured) -> tuple:
    fig = figures.predicted_beside_measured(PREDICTED, measured, "step, s", title="T")
    fig.draw_without_rendering()
    return fig, fig.axes[0]


def rows(ax) -> dict[float, str]:
    return {tick: label.get_text() for tick, label in zip(ax.get_yticks(), ax.get_yticklabels(), strict=True)}


def marks(ax) -> dict[str, dict[str, float]]:
    names = rows(ax)
    found = {dots.get_label(): dots.get_offsets() for dots in ax.collections}
    return {whose: {names[y]: x for x, y in points} for whose, points in found.items()}


def test_each_number_stands_in_the_row_of_its_name():
    _, ax = drawn(MEASURED)
    names = rows(ax)
    assert {names[p.get_y() + p.get_height() / 2]: p.get_width() for p in ax.patches} == pytest.approx(PREDICTED)
    assert marks(ax) == {"measured": pytest.approx(MEASURED)}


def test_rows_are_in_the_order_given_from_the_top():
    _, ax = drawn(MEASURED)
    from_the_top = [name for _, name in sorted(rows(ax).items(), reverse=True)]
    assert from_the_top == ["as it is", "repaired", "not tried", "a surprise"]


def test_several_are_told_apart():
    two = {"PyTorch": {"as it is": 1.0}, "ours": {"as it is": 1.1, "repaired": 0.6}}
    fig, ax = drawn(two)
    assert marks(ax) == {whose: pytest.approx(values) for whose, values in two.items()}
    assert len({tuple(dots.get_facecolor()[0]) for dots in ax.collections}) == 2
    assert len({len(dots.get_paths()[0].vertices) for dots in ax.collections}) == 2  # and by shape
    assert {"PyTorch", "ours", "predicted", "step, s"} <= {t.get_text() for t in legible.texts(fig)}
    assert legible.problems(fig) == []
