"""The checks of lesson 15's exercises: the folded answers pass, and wrong answers are told what is wrong."""

import nbformat
import pytest
import torch
import torch.distributed as dist
from lesson_answers import answer, defined

from shardcourse.exercises import cut_loss, one_forward_one_backward
from shardcourse.lessons.cells import code_cells
from shardcourse.repository import ROOT

A, B = "15a_tensor_parallel.ipynb", "15b_pipelines_and_all_together.ipynb"
LOSS, SCHEDULE = answer(A, "def my_"), answer(B, "def my_")
LEAVE = next(
    c.source for c in code_cells(nbformat.read(ROOT / "course" / A, as_version=4)) if "class Leave" in c.source
)


def made(source: str, name: str):
    return defined(LEAVE + "\n\n" + source, name, torch=torch, dist=dist)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("", "", ""),
        ("    dist.all_reduce(top, dist.ReduceOp.MAX)\n", "", "one process has"),
        ("(logits - top[:, None]).exp().sum(dim=1)", "logits.exp().sum(dim=1)", "one process has"),
        ("total = Leave.apply(total)", "total = Leave.apply(total.detach())", "gradient"),
        ("    found = Leave.apply(found)\n", "", "one process has"),
        ("torch.where(here, found, 0)", "found", "one process has"),
        ("    width = ", "    dist.all_reduce(logits.detach().clone())\n    width = ", "larger than one number"),
    ],
)
def test_the_loss_of_cut_logits(old, new, said):
    assert old in LOSS
    found = cut_loss.problems(made(LOSS.replace(old, new) if old else LOSS, "my_loss"))
    assert found == [] if not said else said in " ".join(found)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("", "", ""),
        ("min(p - 1 - rank, m)", "m", "keeps 8 micro-batches at once"),
        ("min(p - 1 - rank, m)", "0", "a rank waits too often"),
        ("range(ahead)]", "range(ahead + 1)]", "exactly once"),
    ],
)
def test_the_schedule(old, new, said):
    assert old in SCHEDULE
    found = one_forward_one_backward.problems(made(SCHEDULE.replace(old, new) if old else SCHEDULE, "my_schedule"))
    assert found == [] if not said else said in " ".join(found)
