"""Lesson 23: products in a ring and a split backward give the numbers of one process; the lesson's code is tried."""

from functools import cache
from itertools import accumulate

import nbformat
import pytest
import torch
import torch.distributed as dist

from shardcourse.experiments import ring_products, split_backward
from shardcourse.lessons.cells import as_python, code_cells
from shardcourse.lessons.folders import ROOT
from shardlab import launch
from shardsim.pipeline_schedules import one_f_one_b

LESSON = ROOT / "course" / "23_hidden_communication.ipynb"
N = 4


@pytest.fixture(scope="module")
def lesson():
    """Return the functions that the lesson defines."""
    names = {"torch": torch, "dist": dist, "N": N, "__name__": "lesson"}
    names |= {"cache": cache, "accumulate": accumulate, "one_f_one_b": one_f_one_b}
    for cell in code_cells(nbformat.read(LESSON, as_version=4)):
        if "\ndef " in f"\n{cell.source}":
            exec(as_python(cell.source), names)
    return names


def off_by_one(x, w, product):
    """Put each chunk where the next one belongs."""
    parts = [torch.empty_like(x) for _ in range(N)]
    dist.all_gather(parts, x)
    return torch.cat([product(part, w) for part in parts[1:] + parts[:1]])


def test_forward_is_that_of_one_process_and_a_wrong_order_is_seen(lesson):
    ways = {name: lesson[name] for name in ("gather_then_multiply", "in_a_ring")} | {"wrong": off_by_one}
    found = launch(ring_products.measure_forward, N, ways, [0.0], device="cpu")
    for rank in found:
        assert {name: way.errors[0] < 1e-5 for name, way in rank.items()} == dict.fromkeys(ways, True) | {
            "wrong": False
        }


def test_backward_is_that_of_one_process(lesson):
    ways = {name: lesson[name] for name in ("multiply_then_scatter", "weight_later", "ring_of_sums")}
    for rank in launch(ring_products.measure_backward, N, ways, [0.0], device="cpu"):
        assert max(max(way.errors) for way in rank.values()) < 1e-5


@pytest.mark.parametrize(("p", "m"), [(4, 8), (4, 4), (8, 16)])
def test_a_split_schedule_is_complete_and_a_late_weight_shortens_it(lesson, p, m):
    at_once, late = ([lesson["split_schedule"](rank, p, m, rank * by) for rank in range(p)] for by in (0, 1))
    for actions in at_once + late:
        assert sorted(actions) == sorted((kind, i) for kind in ("forward", "backward", "weight") for i in range(m))
    assert lesson["ticks"](at_once) == 3 * m + 2 * (p - 1)
    assert lesson["ticks"](late) == 3 * m + p - 1
    assert [lesson["most_kept"](actions) for actions in at_once] == list(range(p, 0, -1))
    assert [lesson["most_kept"](actions) for actions in late] == [p] * p


def test_a_split_backward_has_the_gradients_of_one_process(lesson):
    split = [lesson["split_schedule"](rank, 2, 3, late=rank) for rank in range(2)]
    whole = [[(action.kind, action.micro_batch) for action in one_f_one_b(rank, 2, 3)] for rank in range(2)]
    halves = lesson["input_gradient"], lesson["weight_gradients"]
    for lists in (split, whole):
        timelines, error = split_backward.measured(lists, 3, *halves)
        assert error < 1e-5
        assert all(len(timeline.spans) == 9 for timeline in timelines)


def test_a_weight_action_that_is_left_out_is_seen(lesson):
    split = [lesson["split_schedule"](rank, 2, 3, late=rank) for rank in range(2)]
    split[0].remove(("weight", 1))
    assert split_backward.measured(split, 3, lesson["input_gradient"], lesson["weight_gradients"])[1] > 1e-2
