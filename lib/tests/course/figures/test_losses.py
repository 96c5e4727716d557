"""The figure of losses draws every run, and the levels and the shaded steps that it is given."""

import legible

from shardcourse.figures.losses import loss_curves


def test_loss_curves_can_be_read():
    runs = {"fp32": [3.0, 2.0, 1.5], "bf16": [3.0, 2.5, 2.4]}
    fig = loss_curves(runs, "Two runs", levels={"best": 1.0, "almost": 1.05}, shaded=range(1, 2), top=3.5)
    ax = fig.axes[0]
    drawn = {line.get_label(): list(line.get_ydata()) for line in ax.lines}
    assert {name: drawn[name] for name in runs} == runs
    assert [1.0, 1.0] in [list(map(float, line.get_ydata())) for line in ax.lines]
    assert ax.get_ylim() == (0, 3.5)
    assert len(ax.patches) == 1
    unit_free = ("labelled 'step'", "labelled 'loss'")  # neither has a unit
    assert [p for p in legible.problems(fig) if not p.endswith(unit_free)] == []
