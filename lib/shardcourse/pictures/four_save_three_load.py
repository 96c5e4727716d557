"""A tensor of 256 rows: four ranks have saved it in four files, and three ranks load it."""

from shardcourse.figures.diagram import diagram
from shardcourse.figures.style import TEXT, LessonFigure

ROWS = 256
COLOURS = ("parameters", "optimizer states", "gradients")


def draw() -> LessonFigure:
    """Draw the files above, the ranks that load below, and an arrow for each piece that a rank reads."""
    files = _spans(4)
    ranks = _spans(3)
    with diagram(7.4, 3.0, x=(-42, 258), y=(0, 6.1), title="Four ranks saved 256 rows. Three ranks load them.") as d:
        d.text(-6, 0.95, "saved:\n4 files", ha="right")
        d.text(-6, 5.05, "loaded by\n3 ranks", ha="right")
        for f, (first, last) in enumerate(files):
            d.box(first + 1, 0.2, last - first - 2, 1.5, f"file of rank {f}\nrows {first}:{last}")
        for rank, ((first, last), look) in enumerate(zip(ranks, COLOURS, strict=True)):
            d.box(first + 1, 4.3, last - first - 2, 1.5, f"rank {rank}\nrows {first}:{last}", look)
            for start, end in _pieces(files, first, last):
                d.box(start + 1, 1.75, end - start - 2, 0.35, "", look)
                middle = (start + end) / 2
                d.arrow((middle, 2.15), (middle, 4.25), color=TEXT)
        d.text(ROWS / 2, 3.1, "read", backgroundcolor="none")
    return d.figure


def _spans(n: int) -> list[tuple[int, int]]:
    """Return each rank's rows [first, last): equal chunks, rounded up."""
    chunk = -(-ROWS // n)
    return [(rank * chunk, min(ROWS, (rank + 1) * chunk)) for rank in range(n)]


def _pieces(files: list[tuple[int, int]], first: int, last: int) -> list[tuple[int, int]]:
    cuts = [(max(first, start), min(last, end)) for start, end in files]
    return [(start, end) for start, end in cuts if start < end]
