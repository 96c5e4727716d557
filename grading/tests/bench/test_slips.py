"""Slips made by machine: each is another text with its own name. The lists of those that change nothing are current."""

import ast

import pytest

from grading.bench.machine_slips import equivalent
from grading.gradebook.nbgrader_api import ROOT
from grading.samples.slips import _slips, slips_of

LABS = sorted(path.name for path in (ROOT / "solutions").glob("lab*"))


@pytest.mark.night
@pytest.mark.parametrize("lab", LABS)
def test_each_slip_is_one_text_with_one_name(lab):
    slips = slips_of(lab)
    assert len({slip.key for slip in slips}) == len({slip.source for slip in slips}) == len(slips) > 50


@pytest.mark.parametrize("lab", [lab for lab in LABS if equivalent(lab)])
def test_what_changes_nothing_is_still_there(lab):
    known = equivalent(lab)
    assert known.keys() <= {slip.key for slip in slips_of(lab)}
    assert all(len(why.split()) > 3 for why in known.values())


def test_equal_statements_have_a_slip_each():
    twice = "def f(x):\n    if x > 1:\n        x = x * 2\n    if x > 1:\n        x = x * 3\n    return x"
    never = [slip for slip in _slips("f", twice, on_ranks=False) if slip.key.endswith("| never")]
    assert len({slip.source for slip in never}) == 2
    assert all(ast.parse(slip.source) for slip in never)
