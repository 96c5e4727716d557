"""A figure of one tensor, rank by rank: the part that each rank holds at this moment."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from shardcourse.figures.diagram import diagram

Span = tuple[float, float]  # of a dimension, as shares of its size: (0, 0.25) is the first quarter
WHOLE = ((0.0, 1.0), (0.0, 1.0))  # rows, columns

_WIDTH, _HEIGHT = 3.0, 2.0  # of the whole tensor in the picture
_DOWN = _HEIGHT + 1.5  # from one row of ranks to the next


def slices(parts: Sequence[tuple[str, tuple[Span, Span] | None]], title: str) -> Figure:
    """Draw a frame the size of the whole tensor for each rank, filled where the rank holds it, with words below.

    `parts[rank]`: words, and the spans of rows and columns that the rank holds (None: nothing).
    """
    in_a_row = min(4, len(parts))
    rows = -(-len(parts) // in_a_row)
    size = {"x": (-0.2, in_a_row * (_WIDTH + 0.6)), "y": (-0.7, rows * _DOWN - 0.1)}
    with diagram(1.85 * in_a_row, 1.35 * rows + 0.3, title=title, **size) as d:
        for rank, (words, share) in enumerate(parts):
            x, y = (rank % in_a_row) * (_WIDTH + 0.6), (rank // in_a_row) * _DOWN
            d.text(x, y - 0.3, f"rank {rank}", ha="left", weight="bold")
            d.box(x, y, _WIDTH, _HEIGHT)
            if share:
                (top, bottom), (left, right) = share
                look = "gathered" if share == WHOLE else "parameters"
                d.box(x + left * _WIDTH, y + top * _HEIGHT, (right - left) * _WIDTH, (bottom - top) * _HEIGHT, "", look)
            d.text(x + _WIDTH / 2, y + _HEIGHT + 0.15, words, size=8, va="top")
    return d.figure
