"""Lab 11's class before the referee, and what stands twice: in the notebook, and in the referee's own copy."""

import ast
import inspect
from dataclasses import fields

import pytest
import torch
from submissions import checks_that_nothing_needs, class_of, concerned, surprises_of, try_sample

from grading.checks.lab11_slow_link import drawn_jobs, on_ranks
from grading.references.lab11_slow_link import schedule_times
from grading.samples.sample import read_lab
from grading.samples.trial import run_cells

ONE_RANK = ("lab11.choice",)  # its drill needs no other
LAB = "lab11_slow_link"


@pytest.mark.parametrize("sample", class_of(LAB))
def test_sample_gets_its_points_and_its_cause(sample, answers, referees):
    try_sample(sample, answers(sample), referees(LAB))


@pytest.mark.parametrize(
    "sample",
    [p if p.id in ("right", "rule_of_thumb") else pytest.param(*p.values, id=p.id, marks=pytest.mark.night)
     for p in concerned(LAB, ONE_RANK)],
)  # fmt: skip
def test_sample_gets_its_points_where_one_rank_is_asked(sample, answers, unboxed):
    assert surprises_of(sample, answers(sample), unboxed(LAB), ONE_RANK) == []


def test_every_check_stops_a_sample_that_no_other_check_stops():
    assert checks_that_nothing_needs(LAB) == set()


def test_the_notebook_shows_the_program_that_the_reference_runs():
    cells = {c.metadata.nbgrader.grade_id: c.source for c in read_lab("labs", LAB).cells}
    shown = ast.parse(cells["program"]).body[0]
    ours = ast.parse(inspect.getsource(on_ranks.EveryStep)).body[0]
    assert ast.unparse(shown) == ast.unparse(ast.ClassDef(**vars(ours) | {"body": ours.body[1:]}))


@pytest.fixture(scope="module")
def notebook():
    """Names of the cells that are given, and of the answer to part 2."""
    nb = read_lab("solutions", LAB)
    nb.cells = [c for c in nb.cells if c.metadata.nbgrader.grade_id in ("parameters", "imports", "job", "choose")]
    return run_cells(nb)


@pytest.mark.parametrize("seed", (0, 7))
def test_jobs_are_drawn_as_the_notebook_draws_them(notebook, seed):
    names = [f.name for f in fields(drawn_jobs.Job)]
    assert [f.name for f in fields(notebook["Job"])] == names
    assert notebook["RANGES"] == drawn_jobs.RANGES
    for facts, shown in zip(drawn_jobs.draw(seed), notebook["draw"](seed), strict=True):
        for name in names:
            mine, theirs = getattr(drawn_jobs.job_of(facts), name), getattr(shown, name)
            if isinstance(mine, torch.Tensor):
                torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
            else:
                assert mine == (pytest.approx(theirs, rel=1e-12) if isinstance(mine, float) else theirs)


def test_the_solutions_seconds_are_the_references(notebook):
    facts = drawn_jobs.draw(3)[5]
    for key, seconds in schedule_times.times(facts).items():
        found = notebook["predicted_s"](drawn_jobs.job_of(facts), *map(int, key.split()))
        assert found == pytest.approx(seconds if seconds else float("inf"), rel=1e-9), key
