"""A figure of a collective, hop by hop: for each chunk on each rank, the ranks whose numbers are in its sum."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from shardcourse.figures.style import BLUE, ORANGE, TEXT, figure

Held = Sequence[Sequence[Sequence[int]]]  # for each rank and each of its chunks: the ranks in its sum

_BOX = 0.86  # size of a box; the distance between boxes is 1


def chunks_over_hops(hops: Mapping[str, Held], *, in_a_row: int = 4, title: str = "") -> Figure:
    """Draw a square for each hop: a line for each rank, with a box for each chunk that lists the ranks in its sum.

    `hops` maps a name ("after hop 1") to what the ranks hold. A box is filled once every rank is in its sum. A thick
    frame marks the boxes that this hop has changed.
    """
    n_rows = -(-len(hops) // in_a_row)
    before = next(iter(hops.values()))
    with figure(7.4, 2.1 * n_rows + 0.3, nrows=n_rows, ncols=in_a_row, squeeze=False) as (fig, axes):
        for i, (ax, (name, held)) in enumerate(zip(axes.flat, hops.items(), strict=False)):
            _square(ax, held, before)
            ax.set_title(name, fontsize=9, fontweight="normal", loc="center", pad=2)
            ax.tick_params(length=0, labelleft=i % in_a_row == 0, labelsize=8)
            before = held
        for ax in axes.flat[len(hops) :]:
            ax.set_axis_off()
        fig.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
    return fig


def _square(ax: Axes, held: Held, before: Held) -> None:
    n_ranks, n_chunks = len(held), len(held[0])
    for rank, chunks in enumerate(held):
        for c, ranks in enumerate(chunks):
            full, changed = len(ranks) == n_ranks, sorted(ranks) != sorted(before[rank][c])
            look = {"color": BLUE if full else "none", "ec": ORANGE if changed else BLUE, "lw": 2 if changed else 0.6}
            ax.bar(c, _BOX, _BOX, bottom=rank - _BOX / 2, **look)
            words = "".join(map(str, sorted(ranks)))
            ax.text(c, rank, words, ha="center", va="center", fontsize=7.5, color="white" if full else TEXT)
    ax.set_xticks(range(n_chunks), [f"c{c}" for c in range(n_chunks)])
    ax.set_yticks(range(n_ranks), [f"rank {r}" for r in range(n_ranks)])
    ax.set(xlim=(-0.6, n_chunks - 0.4), ylim=(n_ranks - 0.4, -0.6))
    ax.spines[:].set_visible(False)
