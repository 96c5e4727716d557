"""Mutations: each is another text with its own name. The lists of those that change nothing are current."""

import ast

import pytest

from grading.bench.mutation_testing import equivalent, without_class_ids
from grading.gradebook.nbgrader_classroom import ROOT
from grading.samples.automatic_mutations import _mutations, mutations_of
from grading.samples.sample import Sample
from grading.samples.trial import handed_in

LABS = sorted(path.name for path in (ROOT / "solutions").glob("lab*"))


@pytest.mark.night
@pytest.mark.parametrize("lab", LABS)
def test_each_mutation_is_one_text_with_one_name(lab):
    made = mutations_of(lab)
    assert len({mutation.key for mutation in made}) == len({mutation.source for mutation in made}) == len(made) > 50


@pytest.mark.parametrize("lab", [lab for lab in LABS if equivalent(lab)])
def test_what_changes_nothing_is_still_there(lab):
    known = equivalent(lab)
    assert known.keys() <= {mutation.key for mutation in mutations_of(lab)}
    assert all(len(why.split()) > 3 for why in known.values())


def test_equal_statements_have_a_mutation_each():
    twice = "def f(x):\n    if x > 1:\n        x = x * 2\n    if x > 1:\n        x = x * 3\n    return x"
    never = [mutation for mutation in _mutations("f", twice, on_ranks=False) if mutation.key.endswith("| never")]
    assert len({mutation.source for mutation in never}) == 2
    assert all(ast.parse(mutation.source) for mutation in never)


def test_a_class_that_is_pickled_twice_is_the_same_answer():
    right, again = (handed_in(Sample("lab11_slow_link", "right", "the solution", cells={})) for _ in range(2))
    assert again["lab11.outer"] != right["lab11.outer"]
    assert [without_class_ids(a) for a in again.values()] == [without_class_ids(a) for a in right.values()]


def test_a_mutation_changes_the_answers_of_its_own_cell_only():
    """The others' verdicts are known: those of the solution."""
    lab = "lab4_fsdp"
    right, again = (handed_in(Sample(lab, "right", "the solution", cells={})) for _ in range(2))
    assert again == right
    last = mutations_of(lab)[-1]
    assert last.cell == "efficiency"
    changed = handed_in(last.sample(lab))
    assert [name for name in right if changed[name] != right[name]] == ["lab4.efficiency"]
