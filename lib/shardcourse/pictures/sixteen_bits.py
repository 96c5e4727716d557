"""Four number formats: how their bits are divided, which numbers they have just above 1, and how far they reach."""

from shardcourse.figures.diagram import diagram
from shardcourse.figures.style import TEXT, LessonFigure

FORMATS = {  # exponent bits, fraction bits, largest number
    "fp32": (8, 23, "3.4e38"),
    "bf16": (8, 7, "3.4e38"),
    "fp16": (5, 10, "65,504"),
    "fp8 E4M3": (4, 3, "448"),
}
BIT = 0.14  # width of a bit
START, WIDTH = 6.5, 5.0  # of the line from 1 to 1 + 2^-6


def draw() -> LessonFigure:
    with diagram(7.4, 3.1, x=(-1.35, 14.2), y=(-1.2, 4.7)) as d:
        d.text(START, -0.85, "all numbers from 1 to 1.0156", ha="left", weight="bold")
        for x, words in ((4.5, "exponent"), (19, "fraction")):
            d.text((1 + x) * BIT, -0.15, words)
        d.text(0, -0.85, "bits", ha="left", weight="bold")
        d.text(13.3, -0.85, "largest", weight="bold")
        for row, (name, (exponent, fraction, largest)) in enumerate(FORMATS.items()):
            y = 0.2 + 1.2 * row
            d.text(-0.15, y + 0.3, name, ha="right")
            d.box(0, y, BIT, 0.6, "", "computing")
            d.box(BIT, y, exponent * BIT, 0.6, str(exponent), "local gradients")
            d.box((1 + exponent) * BIT, y, fraction * BIT, 0.6, str(fraction), "gathered")
            _numbers_above_one(d, y, fraction)
            d.text(13.3, y + 0.3, largest)
    return d.figure


def _numbers_above_one(d, y: float, fraction: int) -> None:
    """Draw a mark for each number between 1 and 1 + 2^-6; fp32's are too many, and become a bar."""
    d.ax.plot([START, START + WIDTH], [y + 0.6, y + 0.6], color=TEXT, lw=0.8)
    n = 2.0 ** (fraction - 6)
    if n > 100:
        d.box(START, y, WIDTH, 0.6, f"{int(n) + 1:,} of them", "computing")
        return
    for i in range(int(n) + 1):
        x = START + WIDTH * i / max(n, 1)
        d.ax.plot([x, x], [y, y + 0.6], color=TEXT, lw=1.6)
    d.text(START + 0.12, y + 0.22, "only 1; the next is 1.125", ha="left") if n < 1 else None
