"""A figure of predicted and measured values: a bar and a dot for each name."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from shardcourse.figures.style import MARKS, TEXT, figure


def predicted_beside_measured(
    predicted: Mapping[str, float],
    measured: Mapping[str, float] | Mapping[str, Mapping[str, float]],
    what: str,
    *,
    title: str = "",
) -> Figure:
    """Draw one row for each name, from the top: a grey bar for the prediction, a mark for each measurement.

    `measured` is {name: value}, or {whose: {name: value}} with up to three series, for example "PyTorch" and "ours". A
    name that is only predicted or only measured gets a row too. `what` labels the axis: a quantity and its unit.
    """
    series = measured if any(isinstance(v, Mapping) for v in measured.values()) else {"measured": measured}
    names = list(dict.fromkeys([*predicted, *(name for values in series.values() for name in values)]))
    rows = {name: len(names) - i for i, name in enumerate(names)}
    with figure(7.4, 1.0 + 0.34 * len(names)) as (fig, ax):
        bars = [rows[name] for name in predicted], list(predicted.values())
        ax.barh(*bars, height=0.62, color=TEXT, alpha=0.45, lw=0, label="predicted")
        for (whose, values), (color, marker) in zip(series.items(), MARKS, strict=False):
            dots = list(values.values()), [rows[name] for name in values]
            ax.scatter(*dots, color=color, marker=marker, s=49, zorder=3, label=whose)
        ax.set_yticks(list(rows.values()), names)
        ax.tick_params(axis="y", length=0)
        ax.set(xlabel=what, title=title, ylim=(0.4, len(names) + 0.6))
        ax.set_xlim(left=0)
        ax.grid(axis="x")
        fig.legend(loc="outside lower center", ncols=1 + len(series), handlelength=1.2)
    return fig
