"""Draw what became of the claims: by lesson, claimed against found, and by kind of mistake."""

from collections import Counter
from collections.abc import Iterable

from shardcourse.claims.claim import VERDICTS, Claim
from shardcourse.claims.table import MARKS
from shardcourse.figures.style import BLUE, ORANGE, PINK, TEXT, LessonFigure, figure

_COLORS = dict(zip(VERDICTS, (BLUE, ORANGE, PINK), strict=True))


def by_lesson(claims: Iterable[Claim]) -> LessonFigure:
    """Return a bar for each lesson: how many of its claims got each verdict."""
    counts = Counter((c.lesson, c.verdict) for c in claims)
    lessons = sorted({lesson for lesson, _ in counts})
    with figure(7.4, 3.6) as (fig, ax):
        left = [0] * len(lessons)
        for verdict in VERDICTS:
            n = [counts[lesson, verdict] for lesson in lessons]
            ax.barh(range(len(lessons)), n, left=left, color=_COLORS[verdict], label=f"{MARKS[verdict]} {verdict}")
            left = [a + b for a, b in zip(left, n, strict=True)]
        ax.set_yticks(range(len(lessons)), [f"lesson {lesson}" for lesson in lessons])
        ax.invert_yaxis()
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.set(xlabel="claims", title="Claims by the lesson that meets them")
        fig.legend(loc="outside lower center", ncols=3)
    return fig


def claimed_and_found(claims: Iterable[Claim]) -> LessonFigure:
    """Return the claims in GB on two logarithmic axes: what was claimed, and a point for each thing that was found."""
    with figure(7.4, 4.4) as (fig, ax):
        ends = [0.3, 3000]
        ax.plot(ends, ends, color=TEXT, lw=1.4, label="claimed = found")
        ax.plot(ends, [4 * x for x in ends], color=TEXT, lw=1, ls=(0, (4, 3)), label="found 4 times as much")
        for verdict, marker in zip(VERDICTS, "oDs", strict=True):
            points = [(c.says, v) for c in claims if (c.verdict, c.unit) == (verdict, "GB") for v in c.found.values()]
            xy = [point for point in points if all(isinstance(value, int | float) for value in point)]
            ax.plot(*zip(*xy, strict=True), marker, color=_COLORS[verdict], ms=5, alpha=0.8, lw=0, label=verdict)
        ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="claimed, GB", ylabel="found, GB")
        ax.set_title("Claims in GB: what was found, against what was claimed")
        ax.legend()
    return fig


def by_kind(kinds: Iterable[str]) -> LessonFigure:
    """Return a bar for each kind of mistake, the most frequent first; `kinds` has one entry for each wrong claim."""
    ordered = Counter(kinds).most_common()
    with figure(7.4, 2.9) as (fig, ax):
        ax.barh([kind for kind, _ in ordered], [n for _, n in ordered], color=PINK)
        ax.invert_yaxis()
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.set(xlabel="claims that are wrong", title="What went wrong")
    return fig
