"""Figures of runs that resume: they can be read, and show the values that they were given."""

import legible

from shardcourse.figures.resumed import losses_without, lost_over_interval

UNDISTURBED = {6: 3.0, 7: 2.8, 8: 2.5, 9: 2.6}


def unreadable(fig) -> list[str]:
    """Problems of a figure, but for its axes: a loss and a number of steps have no unit."""
    rules = (rule for rule in legible.PROBLEMS if rule is not legible.unlabelled_axes)
    return [problem for rule in rules for problem in rule(fig)]


def lines(ax) -> list[dict[float, float]]:
    return [dict(zip(*line.get_data(), strict=True)) for line in ax.lines]


def test_each_panel_has_the_undisturbed_run_and_one_resumed_run():
    without = {"model": {6: 5.0, 7: 4.0}, "step": {6: 3.0, 7: 2.9}}
    fig = losses_without(UNDISTURBED, without)
    assert [ax.get_title() for ax in fig.axes] == [f"without\n{part}" for part in without]
    assert [lines(ax) for ax in fig.axes] == [[UNDISTURBED, losses] for losses in without.values()]
    assert unreadable(fig) == []


def test_formula_and_simulation_are_called_with_seconds():
    fig = lost_over_interval((600, 60, 3), [8, 16], lambda c, tau: c / tau, lambda c, tau: 2 * c / tau)
    drawn = lines(fig.axes[0])
    assert drawn[1:3] == [{8: 600 / 480, 16: 600 / 960}, {8: 2 * 600 / 480, 16: 2 * 600 / 960}]
    assert unreadable(fig) == []
