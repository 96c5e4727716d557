"""Time lines of host and device: launches, the host ahead of the device, and an .item() that stalls both."""

from shardcourse.figures.diagram import Diagram, diagram
from shardcourse.figures.style import ORANGE, PINK, TEXT, LessonFigure

HOST, DEVICE, HEIGHT = 1.3, 3.8, 0.85  # y of the two lanes, and the height of a box
LAUNCH, KERNEL = 0.8, 2.6  # how long each takes


def draw() -> LessonFigure:
    """Return the picture: three launches run ahead, .item() waits, and then the device has nothing to do."""
    with diagram(7.4, 3.2, x=(-1.5, 13.6), y=(0, 6.3)) as d:
        for y, name in ((HOST, "host"), (DEVICE, "device")):
            d.text(-1.4, y + HEIGHT / 2, name, ha="left", weight="bold")
        asks = _launch_and_run(d, 0.2, 3, first=1)
        ends = 0.2 + LAUNCH + 3 * KERNEL
        d.box(asks, HOST, ends - asks, HEIGHT, ".item(): the host waits")
        _launch_and_run(d, ends, 2, first=4, kernels=1)
        d.ax.annotate("", (ends, 3.2), (0.2 + 2 * LAUNCH, 3.2), arrowprops={"arrowstyle": "<->", "color": TEXT})
        d.text(5.4, 2.85, "the host is ahead: launches cost no time here")
        d.ax.annotate("", (ends, 5.2), (ends + LAUNCH, 5.2), arrowprops={"arrowstyle": "<->", "color": PINK})
        d.text(ends + LAUNCH / 2, 5.75, "the device is idle:\nthe queue was empty", color=PINK, weight="bold")
        d.text(0.2, 0.7, "launches return at once", ha="left", color=ORANGE, weight="bold")
        d.text(ends, 0.7, "next launch", ha="left", color=ORANGE, weight="bold")
    return d.figure


def _launch_and_run(d: Diagram, x: float, launches: int, *, first: int, kernels: int | None = None) -> float:
    """Draw launches one after the other from x on, and their kernels; return where the last launch ends."""
    for i in range(launches):
        d.box(x + LAUNCH * i, HOST, LAUNCH, HEIGHT, str(first + i), "local gradients")
        if i < (kernels or launches):
            start = x + LAUNCH + KERNEL * i
            d.box(start, DEVICE, KERNEL, HEIGHT, f"kernel {first + i}", "computing")
    d.arrow((x + LAUNCH / 2, HOST + HEIGHT), (x + LAUNCH + 0.1, DEVICE))
    return x + LAUNCH * launches
