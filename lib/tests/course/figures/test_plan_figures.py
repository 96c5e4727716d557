"""The planner's figures show the numbers that they were given. That they can be read, `test_plots` tests."""

import legible
import pytest
from matplotlib.colors import to_hex

from shardcourse import figures
from shardcourse.figures import memory, plan
from shardcourse.figures.style import BLUE
from shardplan.api import setup_of
from shardplan.records import MemoryPlan, Moment, Plan, SpeedPlan, Term
from shardtrace.timeline import Timeline

GIB = 1 << 30


def made(*sizes: tuple[str, str, float], context: float = GIB) -> MemoryPlan:
    """Moments of (phase, category, GiB); the allocator takes a quarter more at its worst."""
    moments = [
        Moment(f"{phase} {i}", phase, (Term("parameters", "held", GIB), Term(category, "more", n * GIB)))
        for i, (phase, category, n) in enumerate(sizes)
    ]
    allocated = max(m.n_bytes for m in moments)
    return MemoryPlan(tuple(moments), (allocated, 1.25 * allocated), context)


STEP = made(("forward", "activations", 3), ("backward", "activations", 7), ("optimizer", "gradients", 2))


def written(fig) -> list[str]:
    fig.draw_without_rendering()
    return [t.get_text() for t in legible.texts(fig)]


def widths(fig, category: str) -> list[float]:
    face = memory._LOOKS[category][0]
    return [p.get_width() for p in fig.axes[0].patches if to_hex(p.get_facecolor()) == face]


def test_memory_over_a_step_names_its_peak_and_its_levels():
    """1 + 7 GiB allocated; 1.25 times that reserved at most, and 1 GiB of context."""
    fig = figures.planned_memory(STEP, ("H100-80GB", 24 * GIB))
    assert {"peak: backward 1", "allocated: 8", "in use: 9 to 11", "H100-80GB"} <= set(written(fig))
    assert {"forward", "backward", "optimizer"} <= set(written(fig))
    level = [line.get_ydata()[0] for line in fig.axes[0].lines if len(set(line.get_ydata())) == 1]
    assert {8, 24} <= set(level) and fig.axes[0].get_ylim()[1] > 24
    (in_use,) = fig.axes[0].patches
    assert (in_use.get_y(), in_use.get_y() + in_use.get_height()) == (9, 11)


def test_areas_of_memory_over_a_step_are_as_high_as_the_terms():
    areas = {
        to_hex(a.get_facecolor()[0]): a
        for a in figures.planned_memory(STEP).axes[0].collections
        if len(a.get_facecolor())
    }
    ys = areas[memory._LOOKS["activations"][0]].get_paths()[0].vertices[:, 1]
    assert set(ys) == {1, 4, 8, 3}, "on top of 1 GiB of parameters: 3, then 7, then none over 2 of gradients"


def test_a_capacity_far_above_is_named_and_not_drawn():
    fig = figures.planned_memory(STEP, ("H200", 1000 * GIB))
    assert "H200: far above" in written(fig) and fig.axes[0].get_ylim()[1] < 20


def test_stacks_are_the_peak_and_end_where_all_is_in_use():
    smaller = made(("forward", "gradients", 2))
    fig = figures.planned_stacks({"one": STEP, "two": smaller}, ("H100-80GB", 10 * GIB))
    assert widths(fig, "activations") == [7] and widths(fig, "gradients") == [2]
    added = [p for p in fig.axes[0].patches if p.get_hatch() == plan._ADDED["hatch"]]
    assert [p.get_x() + p.get_width() for p in added] == [11, pytest.approx(4.75)]
    assert {"one", "two", "11", "4.75", "H100-80GB"} <= set(written(fig))


def test_parts_of_a_step_add_up_in_a_unit_that_suits_them():
    fig = figures.step_parts({"a": {"computation": 0.3, "bubble": 0.1}, "b": {"computation": 0.2, "surprise": 0.05}})
    assert {"400 ms", "250 ms", "computation", "bubble", "surprise"} <= set(written(fig))
    assert sum(p.get_width() for p in fig.axes[0].patches) == pytest.approx(650)
    assert "1.2 s" in written(figures.step_parts({"a": {"computation": 1.2}}))


def test_parts_are_told_apart_by_colour_or_hatch():
    looks = {name: (face, hatch) for name, (face, hatch, _) in plan._PARTS.items()}
    for hatch in {hatch for _, hatch in looks.values()}:
        assert (
            legible.alike({name: face for name, (face, its) in looks.items() if its == hatch and face != "none"}) == []
        )
    assert len(set(looks.values())) == len(looks)


def test_speed_against_memory_joins_and_names_the_front():
    setup = setup_of("1B", "dgx-h100", 8)

    def point(gib: float, tokens: int) -> Plan:
        held = MemoryPlan((Moment("forward", "forward", ()),), (0.0, gib * GIB), 0.0)
        return Plan(setup, held, SpeedPlan({"computation": 1.0}, {}, Timeline(0, ()), {}, tokens, 1.0, 1.0, 1.0))

    plans = [point(40, 100), point(20, 80), point(30, 70)]
    fig = figures.speed_against_memory(plans, plans[:2], ["fast", "small"])
    everything, front = fig.axes[0].lines[:2]
    assert list(everything.get_xdata()) == [40, 20, 30] and list(everything.get_ydata()) == [100, 80, 70]
    assert list(front.get_xdata()) == [40, 20] and to_hex(front.get_color()) == BLUE
    assert {"fast", "small", setup.machine.gpu.name} <= set(written(fig))
