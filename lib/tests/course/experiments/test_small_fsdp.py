"""The engine of lessons 5a and 5b: the same text in both, and the training of one process."""

import ast
import inspect
from functools import partial

import nbformat
import pytest
import torch
from torch.optim import AdamW

from shardcourse.experiments import measured_training, small_fsdp
from shardcourse.lessons.cells import as_python, code_cells
from shardcourse.repository import ROOT
from shardlab import launch

LESSON = ROOT / "course" / "05a_zero_3_from_scratch.ipynb"


def definitions(source: str) -> dict[str, str]:
    """Return the source of each class and function, without its docstring and comments."""
    nodes = [n for n in ast.parse(source).body if isinstance(n, ast.ClassDef | ast.FunctionDef)]
    for node in nodes:
        if ast.get_docstring(node):
            del node.body[0]
    return {node.name: ast.unparse(node) for node in nodes}


def test_lesson_5a_has_the_same_engine():
    in_lesson: dict[str, str] = {}
    for cell in code_cells(nbformat.read(LESSON, as_version=4)):
        in_lesson |= definitions(as_python(cell.source))
    engine = definitions(inspect.getsource(small_fsdp))
    assert engine == {name: in_lesson.get(name) for name in engine}


@pytest.mark.parametrize("reshard_after_forward", [True, False])
def test_it_trains_as_one_process_does(reshard_after_forward):
    def sharded(model):
        small_fsdp.by_blocks(model, reshard_after_forward=reshard_after_forward)
        return model, AdamW(model.parameters())

    def ddp(model):
        replica = torch.nn.parallel.DistributedDataParallel(model)
        return replica, AdamW(replica.parameters())

    train = partial(measured_training.train, steps=3, micro_batch=1, seq_len=16)
    ours, theirs = (launch(train, 2, prepare, device="cpu", stream=False) for prepare in (sharded, ddp))
    for a, b in zip(ours, theirs, strict=True):
        assert a.losses == pytest.approx(b.losses, rel=1e-5)
        assert a.held["parameters"] == b.held["parameters"] / 2
    assert ours[0].kinds == {"all_gather": 10 if reshard_after_forward else 5, "reduce_scatter": 5}
