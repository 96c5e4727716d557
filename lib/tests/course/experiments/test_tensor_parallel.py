"""Lesson 15's library: the text of lesson 15a's functions, and the messages and pieces that its lessons count on."""

import ast
import inspect
from functools import partial

import nbformat

from shardcourse.experiments import cut_matrices, pipelines, tensor_parallel
from shardcourse.lessons.cells import as_python, code_cells
from shardcourse.repository import ROOT
from shardlab import launch
from shardsim.pipeline_schedules import idle_share

LESSON = ROOT / "course" / "15a_tensor_parallel.ipynb"


def definitions(source: str) -> dict[str, str]:
    return {n.name: ast.unparse(n) for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)}


def test_lesson_15a_has_the_same_functions():
    in_lesson: dict[str, str] = {}
    for cell in code_cells(nbformat.read(LESSON, as_version=4)):
        in_lesson |= definitions(as_python(cell.source))
    ours = definitions(inspect.getsource(tensor_parallel))
    assert ours == {name: in_lesson.get(name) for name in ours} and len(ours) == 2


def test_an_input_prepared_once_saves_three_messages_a_block():
    one = launch(cut_matrices.one_step, 1, device="cpu", stream=False)[0]
    step = partial(launch, cut_matrices.one_step, 4, device="cpu", stream=False)
    naive = step(tensor_parallel.cut_blocks)[0]
    once = step(tensor_parallel.cut_blocks, tensor_parallel.enter_once)[0]
    assert naive.large_messages()["backward"] == {"all_reduce": 20}
    assert once.large_messages()["backward"] == {"all_reduce": 8}
    for name, g in one.gradients.items():
        assert (once.gradients[name] - g).abs().max() <= 1e-5 * g.abs().max()


def test_messages_of_tensor_parallelism_have_no_number():
    """The picture labelled two of them 2 and 4, as if they were those of blocks."""
    slow = {"device": "cpu", "network": cut_matrices.SLOW, "stream": False}
    timeline = launch(cut_matrices.timeline_of, 4, tensor_parallel.cut_blocks, **slow)
    messages = [span for span in timeline[0].spans if span.name == "all_reduce"]
    assert len(messages) > 8 and {span.unit for span in messages} == {""}


def test_1f1b_keeps_less_and_interleaving_more_than_1f1b():
    kept = {name: launch(pipelines.kept_bytes, 4, name, device="cpu", stream=False)[0] for name in pipelines.PIECES}
    assert 0.45 < kept["1F1B"] / kept["GPipe"] < 0.65
    assert kept["1F1B"] < kept["interleaved"] < kept["GPipe"]


def test_ranks_of_a_slept_pipeline_idle_at_least_as_long_as_the_formula_says():
    assert idle_share(pipelines.measured_schedule("GPipe", 4, 8)) > 0.95 * 3 / 11
