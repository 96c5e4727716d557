"""The figures: everybody can read them, and they show the numbers that they were given."""

import io

import example_figures
import legible
import matplotlib.pyplot
import pytest
from course_copy import ROOT
from matplotlib.colors import to_hex
from matplotlib.patches import Patch
from PIL import Image

from shardcourse import figures
from shardcourse.experiments.scaling import Row
from shardcourse.figures import memory, style, timeline
from shardcourse.figures.style import BLUE, ORANGE, TEXT, figure, note, spread
from shardlab.measure.ledger import CATEGORIES
from shardtrace.timeline import Span, Timeline

FOLDER = ROOT / "build" / "pictures"
MiB = 2**20


def written(fig) -> list[str]:
    fig.draw_without_rendering()
    return [t.get_text() for t in legible.texts(fig)]


def bars(fig, look: str) -> list[tuple[float, float]]:
    """(start, width) of the bars of a timeline, by kind."""
    found = [c for c in fig.axes[0].containers if c.get_label() == look]
    return [(p.get_x(), p.get_width()) for c in found for p in c.patches]


# ------------------------------------------------------------------------------------------------- everybody reads them


@pytest.fixture(scope="module")
def drawn() -> dict:
    return example_figures.examples(quick=True)


@pytest.fixture(scope="module")
def drawn_by_night():
    return example_figures.examples()


@pytest.mark.night
@pytest.mark.parametrize("name", [name for name in example_figures.NAMES if name not in example_figures.ON_A_NETWORK])
def test_a_figure_of_a_real_run_can_be_read(name, drawn):
    can_be_read(name, drawn)


@pytest.mark.night
@pytest.mark.parametrize("name", sorted(example_figures.ON_A_NETWORK))
def test_a_figure_of_a_simulated_network_can_be_read(name, drawn_by_night):
    can_be_read(name, drawn_by_night)


def can_be_read(name, drawn):
    """Its picture is in build/pictures afterwards, on both backgrounds."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for background in legible.BACKGROUNDS:
        legible.picture(drawn[name], background).save(FOLDER / f"{name}-{background}.png")
    assert legible.problems(drawn[name]) == []


@pytest.mark.night
def test_every_figure_is_drawn(drawn):
    assert set(drawn) | example_figures.ON_A_NETWORK == set(example_figures.NAMES)
    assert {name for name in figures.__all__ if not any(p.startswith(name) for p in example_figures.NAMES)} == set()


def test_colours_of_memory_are_told_apart_with_any_vision():
    assert legible.alike({name: face for name, (face, _, _) in memory._LOOKS.items()}) == []


def test_lines_are_told_apart_by_colour_and_mark():
    assert legible.alike({"text": TEXT} | {mark: color for color, mark in style.MARKS}) == []
    assert len({mark for _, mark in style.MARKS}) == len(style.MARKS)


def test_bars_of_a_timeline_are_told_apart_by_colour_or_hatch():
    looks = {name: (face, hatch) for name, (face, hatch, _, _) in timeline._LOOKS.items()}
    for hatch in {hatch for _, hatch in looks.values()}:
        assert legible.alike({name: face for name, (face, its) in looks.items() if its == hatch}) == []


@pytest.mark.parametrize("color", [TEXT, *(color for color, _ in style.MARKS)])
def test_text_of_these_colours_reads_on_white_and_black(color):
    with figure(2, 1) as (fig, ax):
        ax.set_axis_off()
        note(ax, "words", (0.5, 0.5), color=color)
    assert legible.faint_text(fig) == []


def overlap(fig, ax):
    note(ax, "one", (0.5, 0.5))
    note(ax, "two", (0.5, 0.5), shift=(5, 3))


def cut_off(fig, ax):
    fig.set_layout_engine("none")
    note(ax, "a long text at the edge", (0.95, 0.5))


def on_a_bar_of_nearly_its_colour(fig, ax):
    ax.barh(0.5, 1, 0.5, facecolor=BLUE)
    note(ax, "words", (0.5, 0.5))


def numbers_without_a_unit(fig, ax):
    ax.set_xlabel("time")


def a_nameless_area(fig, ax):
    fig.legend([Patch(facecolor=BLUE, lw=0)], ["blue"], loc="outside lower center")
    ax.barh([0.2, 0.8], 1, 0.3, color=[BLUE, ORANGE], lw=0)


MISTAKES = {
    overlap: legible.overlapping_text,
    cut_off: legible.clipped_text,
    on_a_bar_of_nearly_its_colour: legible.faint_text,
    numbers_without_a_unit: legible.unlabelled_axes,
    a_nameless_area: legible.missing_in_legend,
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found_by_the_rule_meant_for_it(mistake):
    with figure(4, 2) as (fig, ax):
        ax.set(xlabel="time, ms", ylabel="memory, MiB")
        assert legible.problems(fig) == []
        mistake(fig, ax)
    assert [rule for rule in legible.PROBLEMS if rule(fig)] == [MISTAKES[mistake]]


def test_colours_that_only_hue_tells_apart_are_found():
    assert legible.alike({"red": "#d03030", "green": "#608020"})
    assert legible.alike({"one": BLUE, "the same": BLUE})


@pytest.mark.night
def test_a_figure_shows_itself_and_leaves_nothing_open(drawn):
    data, metadata = drawn["memory_stacks"]._repr_png_()
    shown = Image.open(io.BytesIO(data))
    assert shown.size == (2 * metadata["width"], 2 * metadata["height"])
    assert shown.convert("RGBA").getpixel((0, 0))[3] == 0, "the background is the page's"
    assert matplotlib.pyplot.get_fignums() == []


def test_labels_give_way_to_each_other_and_keep_their_order():
    placed = spread([1.0, 5.0, 1.1, 1.2], gap=1.0)
    assert placed[1] == 5.0
    assert placed[0] + 0.99 < placed[2] < placed[3] - 0.99
    assert sum(placed) == pytest.approx(sum([1.0, 5.0, 1.1, 1.2]))
    assert spread([], 1.0) == []


# --------------------------------------------------------------------------------------------------------------- memory


def test_every_category_has_a_look():
    assert set(memory._LOOKS) == set(CATEGORIES)


def test_stacks_are_as_long_as_what_they_show():
    predicted, ranks = {"parameters": 2 * MiB, "gradients": MiB}, [{"parameters": 2 * MiB}, {"other": 3 * MiB}]
    fig = figures.memory_stacks({"DDP": predicted}, {"DDP": ranks})
    rows: dict[float, list] = {}
    for patch in fig.axes[0].patches:
        rows.setdefault(round(patch.get_y() + 0.4, 6), []).append((patch.get_x(), patch.get_width()))
    assert rows == {-1: [(0, 2), (2, 1)], -2: [(0, 2)], -3: [(0, 3)]}
    assert {"DDP", "predicted", "rank 0", "rank 1", "memory of a rank, MiB"} <= set(written(fig))
    assert written(fig).count("3") >= 2, "totals stand at the bars' ends"


def test_what_is_predicted_is_grey_and_what_is_measured_is_not():
    both = figures.memory_stacks({"a": {"gradients": MiB}}, {"a": [{"gradients": MiB}]})
    assert [to_hex(p.get_facecolor()) for p in both.axes[0].patches] == [TEXT, memory._LOOKS["gradients"][0]]
    alone = figures.memory_stacks({"a": {"gradients": MiB}}, {})
    (swatch,) = alone.legends[0].get_patches()
    assert to_hex(swatch.get_facecolor()) == TEXT
    assert "predicted" not in written(alone), "there is nothing to tell it from"


def test_a_budget_is_in_sight_even_if_nothing_comes_near_it():
    fig = figures.memory_stacks({"a": {"gradients": MiB}}, {}, budget=("a GPU", 80 * MiB))
    assert fig.axes[0].get_xlim()[1] > 80
    assert "a GPU" in written(fig)
    assert legible.problems(fig) == []


def test_memory_that_can_not_be_shown_is_refused():
    with pytest.raises(ValueError, match="no categories gradient: there are parameters"):
        figures.memory_stacks({"a": {"gradient": 1}}, {})
    with pytest.raises(ValueError, match="nothing to show"):
        figures.memory_stacks({}, {})


def history(n: int = 5000) -> list[tuple[float, dict[str, int]]]:
    """Two categories, that change thousands of times in a second; a peak just before two seconds of peace."""
    held = [{"parameters": MiB, "activations": (i % 7) * 1000} for i in range(n)]
    held[n - 2] = {"parameters": MiB, "activations": MiB}
    return [(i / n, h) for i, h in enumerate(held)] + [(3.0, {"parameters": MiB, "activations": MiB // 2})]


def height(fig, x: float) -> float:
    """Of everything stacked, in data coordinates: where the areas end above x."""
    tops = [top for area in fig.axes[0].collections[:2] for top in _tops(area.get_paths()[0].vertices, x)]
    return max(tops)


def _tops(vertices, x: float) -> list[float]:
    return [y for (x0, y), (x1, _) in zip(vertices, vertices[1:], strict=False) if min(x0, x1) <= x <= max(x0, x1)]


def test_memory_over_a_step_keeps_its_peak_and_what_follows_it():
    """Thousands of moments share few columns of a picture: the highest counts, but only for as long as it lasts."""
    moments = history()
    fig = figures.memory_over_step(moments, [(0.0, "forward"), (0.5, "backward")], by_time=True)
    assert height(fig, 999.6) == pytest.approx(2.0)
    assert height(fig, 2000.0) < 1.01, "the peak is over"
    assert len(fig.axes[0].collections[0].get_paths()[0].vertices) < 6 * memory._COLUMNS + 10
    assert {"peak: 2 MiB", "forward", "backward", "time since the step began, ms"} <= set(written(fig))


def test_memory_over_events_gives_each_the_same_width():
    held = [{"parameters": n} for n in (1, 3, 2)]
    fig = figures.memory_over_step(list(zip((0.0, 0.1, 9.0), held, strict=True)), [(0.0, "forward")])
    assert fig.axes[0].get_xlim() == (0, 2)
    assert height(fig, 1.5) == 3


def test_the_last_phase_has_its_name_even_if_it_allocates_nothing():
    moments = [(float(i), {"parameters": MiB, "activations": i % 30 * MiB}) for i in range(60)]
    fig = figures.memory_over_step(
        moments, [(0.0, "forward"), (30.0, "backward"), (60.0, "optimizer"), (60.1, "forward")]
    )
    fig.draw_without_rendering()
    ax = fig.axes[0]
    assert {t.get_text(): t.xy[0] for t in ax.texts}["optimizer"] == ax.get_xlim()[1], "further right it is not drawn"
    short = [(0.0, "forward"), (30.0, "backward"), (56.0, "optimizer"), (58.0, "forward")]
    at = {t.get_text(): t.xy[0] for t in figures.memory_over_step(moments, short).axes[0].texts}
    assert at["optimizer"] == 56 and at["forward"] == 15, "not after the step, when the tracker is back in forward"
    twice = [(0.0, "other"), (1.0, "forward"), *short[1:2], (55.0, "optimizer"), (57.0, "forward"), (58.0, "other")]
    at = {t.get_text(): t.xy[0] for t in figures.memory_over_step(moments, twice).axes[0].texts}
    assert at["optimizer"] == 55 and at["forward"] == 15.5, "nor two short phases after the step"
    assert legible.problems(fig) == []


def test_no_line_of_a_timelines_grid_crosses_words():
    ax = figures.timelines({"rank 0": STEP}).axes[0]
    grid = [segment for lines in ax.collections for segment in lines.get_segments()]
    assert {(a[1] + b[1]) / 2 for a, b in grid} == set(ax.get_yticks()), "in the lanes"
    assert all(abs(a[1] - b[1]) == 1 for a, b in grid)


# ------------------------------------------------------------------------------------------------------------ timelines


def link(kind: str, start: float, end: float, **more) -> Span:
    return Span("link", kind, start, end, **more)


STEP = Timeline(
    0,
    (
        Span("compute", "forward", 10.0, 12.0, "blocks.0"),
        Span("compute", "backward", 12.0, 16.0, "blocks.0"),
        link("all_gather", 11.0, 13.0, unit="blocks.1", issued_s=11.0),
        link("reduce_scatter", 15.0, 18.0, unit="blocks.0", issued_s=14.0),
        Span("wait", "reduce_scatter", 16.0, 18.0),
    ),
)


def test_a_timeline_shows_what_is_hidden_and_what_is_exposed():
    fig = figures.timelines({"rank 0": STEP})
    gap = 8000 / 500
    assert bars(fig, "hidden communication") == [(1000, pytest.approx(2000, abs=gap)), (5000, pytest.approx(1000))]
    assert bars(fig, "exposed communication") == [(6000, pytest.approx(2000, abs=gap))]
    assert sum(width for _, width in bars(fig, "exposed communication")) == pytest.approx(
        STEP.exposed_s * 1e3, abs=2 * gap
    )
    assert "8000 ms; 2000 of 5000 ms communication exposed" in written(fig)
    assert [t.get_text() for t in fig.axes[0].texts][2:] == ["0", "0", "1", "0"], "units, where there is room"
    assert [t.get_text() for t in fig.axes[0].get_yticklabels()] == ["compute", "all_gather", "reduce_scatter"]


def test_waiting_is_for_a_rank_and_not_for_the_link():
    """Issued at 14: until 15 this rank waits for another one, unless its own link was busy, or all were there."""

    def waits(**more) -> list:
        step = Timeline(0, (*STEP.spans[:2], link("all_reduce", 15.0, 16.0, issued_s=14.0, **more)))
        return bars(figures.timelines({"rank 0": step}), "waiting for a slower rank")

    assert waits(ready_s=15.0) == [(4000, pytest.approx(1000, rel=0.1))]
    assert waits(ready_s=14.5) == [(4000, pytest.approx(500, rel=0.1))]
    assert waits(ready_s=14.0) == []
    assert waits(ready_s=None) == [], "nobody knows for whom or what it waited"
    first = link("all_reduce", 13.0, 15.0, issued_s=13.0, ready_s=13.0)
    busy = Timeline(0, (first, link("all_reduce", 15.0, 16.0, issued_s=14.0, ready_s=15.0)))
    assert bars(figures.timelines({"rank 0": busy}), "waiting for a slower rank") == []


def test_whatever_a_rank_computes_has_a_bar():
    names = "forward", "recompute", "backward", "optimizer", "copy", "something new"
    step = Timeline(0, tuple(Span("compute", name, i, i + 1) for i, name in enumerate(names)))
    legend = figures.timelines({"a": step}).legends[0]
    assert [t.get_text() for t in legend.get_texts()] == [*names[:4], "copying", "other computing"]


def test_a_step_without_spans_is_refused():
    with pytest.raises(ValueError, match="no spans in rank 1"):
        figures.timelines({"rank 0": STEP, "rank 1": Timeline(1, ())})
    with pytest.raises(ValueError, match="no spans in steps"):
        figures.timelines({})


def test_times_are_of_one_clock_or_of_each_steps_own():
    later = Timeline(1, tuple(Span("compute", "forward", s.start_s + 5, s.end_s + 5) for s in STEP.spans[:1]))
    steps = {"a": STEP, "b": later}
    assert [start for start, _ in bars(figures.timelines(steps), "forward")] == [0, 5000]
    assert [start for start, _ in bars(figures.timelines(steps, one_clock=False), "forward")] == [0, 0]


def test_two_collectives_of_one_kind_never_overlap_in_the_picture():
    """The first one's end came to the rank's notice late."""
    step = Timeline(0, (link("all_reduce", 1.0, 2.5), link("all_reduce", 2.0, 3.0)))
    assert bars(figures.timelines({"a": step}), "exposed communication") == [
        (0, pytest.approx(1000, rel=0.01)),
        (1000, pytest.approx(1000, rel=0.01)),
    ]


# --------------------------------------------------------------------------------------------------------------- curves


def test_the_bucket_curve_says_where_each_is_least_and_how_sure():
    predicted = {2.0**k: 0.1 + 0.01 * abs(k - 1) for k in range(-3, 6)}
    measured = {cap: [0.2 + 0.01 * abs(cap - 4), 0.5] for cap in (1, 4, 16)}
    fig = figures.bucket_curve(
        predicted, {"DDP": measured}, levels_s={"alone": 0.05}, guesses_ms={1: 90, 4: None, 8: 80}
    )
    assert {"predicted: 2 MiB", "measured, DDP: 4 MiB", "your prediction: 8 MiB", "alone: 50 ms"} <= set(written(fig))
    ranges = [tuple(line.get_xdata()) for line in fig.axes[1].lines if len(line.get_xdata()) == 2]
    assert ranges == [(1, 4), (1, 16), (1, 8)], "the neighbours of the best on either side"
    assert legible.problems(fig) == []


def row(ranks: int, efficiency: float) -> Row:
    return Row(ranks, 1.0, 1.0, efficiency, efficiency - 0.1, efficiency + 0.1, 0.95)


def test_scaling_shows_both_kinds_beside_the_ideal_and_the_prediction():
    measured = {"weak scaling": [row(1, 1), row(2, 0.9)], "strong scaling": [row(1, 1), row(2, 0.6), row(4, 0.3)]}
    fig = figures.scaling_efficiency(measured, predicted={"strong": {1: 1.0, 4: 0.35}})
    assert {"weak scaling", "strong scaling", "strong, predicted", "ideal", "ranks"} <= set(written(fig))
    curves = [list(line.get_ydata()) for line in fig.axes[0].lines if line.get_marker() != "None"]
    assert curves == [[1, 0.9], [1, 0.6, 0.3]]
    heights = {t.get_text(): t.xy[1] for t in fig.axes[0].texts}
    assert heights["weak scaling"] == pytest.approx(0.9, abs=0.05), "a label stands at its curve's end"
    assert heights["strong scaling"] == pytest.approx(0.3, abs=0.05)
    assert legible.problems(fig) == []
