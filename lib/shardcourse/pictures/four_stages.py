"""Four stages of a pipeline over time, with four micro-batches and the bubble. Lesson 15b."""

from shardcourse.figures.diagram import diagram
from shardcourse.figures.style import LessonFigure
from shardsim.pipeline_schedules import gpipe, pipeline_timelines

P = M = 4


def draw() -> LessonFigure:
    ranks = pipeline_timelines([gpipe(rank, P, M) for rank in range(P)], 1, 2)
    with diagram(7.4, 2.7, x=(-3.2, 21.2), y=(-0.3, 6.2)) as d:
        for rank, timeline in enumerate(ranks):
            d.text(-0.3, rank + 0.5, f"rank {rank}", ha="right", weight="bold")
            d.box(0, rank, 21, 1, look="empty")
            for span in timeline.spans:
                look = "gathered" if span.name == "forward" else "parameters"
                d.box(span.start_s, rank, span.end_s - span.start_s, 1, span.unit, look)
        d.text(8.5, 0.5, "bubble: idle")
        for x, look, words in ((1, "gathered", "forward of a micro-batch"), (11.5, "parameters", "its backward")):
            d.box(x, 5, 1, 0.8, "0", look)
            d.text(x + 1.4, 5.4, words, ha="left")
        d.arrow((16.5, 4.5), (21, 4.5))
        d.text(16.2, 4.5, "time", ha="right")
    return d.figure
