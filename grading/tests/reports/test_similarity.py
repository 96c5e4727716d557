"""Likeness survives what is done to hide a copy, and does not show where two worked apart."""

import ast
import random
import re

import pytest
from submissions import LAB, LABS

from grading.reports import similarity
from grading.reports.similarity import alike
from grading.samples.sample import read_lab, samples


def one(name: str):
    return next(s for s in samples(LAB) if s.name == name).notebook()


class Rename(ast.NodeTransformer):
    """Every name that the notebook itself gives, other constants, no docstrings, no annotations."""

    def __init__(self, own: set[str]) -> None:
        self.own = own

    def name(self, name):
        return f"renamed_{name[::-1]}" if name in self.own else name

    def visit_Name(self, node):
        return ast.Name(self.name(node.id), node.ctx)

    def visit_arg(self, node):
        return ast.arg(self.name(node.arg))

    def visit_Attribute(self, node):
        return ast.Attribute(self.visit(node.value), self.name(node.attr), node.ctx)

    def visit_Constant(self, node):
        return ast.Constant(node.value + 1 if type(node.value) is int else node.value)

    def visit_FunctionDef(self, node):
        node.name, node.returns = self.name(node.name), None
        if len(node.body) > 1 and ast.get_docstring(node):
            node.body = node.body[1:]
        node.body = [ast.parse("note = 'mine'").body[0], *node.body]
        return self.generic_visit(node)


def disguised(nb):
    """A copy by somebody with an evening's time, and no idea of what it does."""
    code = [c for c in nb.cells if c.cell_type == "code"]
    names = "\n".join(c.source for c in code)
    own = set(re.findall(r"(?:self\.|def |, |\()(\w+)(?=[,)=:]| =)", names)) | set(re.findall(r"(\w+) = ", names))
    for cell in code:
        tree = Rename(own).visit(ast.parse(cell.source))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                random.Random(0).shuffle(node.body)
        cell.source = "# all my own work\n" + ast.unparse(ast.fix_missing_locations(tree))
    random.Random(1).shuffle(nb.cells)
    return nb


def test_a_disguised_copy_is_found_and_independent_work_is_not():
    class_ = {"ada": one("right"), "copies": disguised(one("right")), "bob": one("right_other_style")}
    pairs = {(p.first, p.second): p.share for p in alike(class_, read_lab("labs", LAB), least=0)}
    assert "renamed_" in class_["copies"].cells[0].source + class_["copies"].cells[-1].source + str(class_["copies"])
    assert pairs["ada", "copies"] > 0.7
    assert pairs["ada", "bob"] < 0.4
    assert pairs["copies", "bob"] < 0.4
    assert [(p.first, p.second) for p in alike(class_, read_lab("labs", LAB), least=0.6)] == [("ada", "copies")]


@pytest.mark.parametrize("lab", LABS)
def test_who_handed_in_what_was_given_is_like_nobody(lab):
    blank = read_lab("labs", lab)
    assert alike({"ada": blank, "bob": blank}, blank, least=0) == []


def test_what_the_whole_class_writes_says_nothing():
    nb = one("right")
    assert alike({f"s{i}": nb for i in range(20)}, read_lab("labs", LAB), least=0) == []


@pytest.mark.parametrize("source", ["def broken(:", "+".join(["'a'"] * 5000), "x = '\ud83d'", "x = 1\0"])
def test_code_that_is_no_python_is_like_nobody(source):
    nb = one("right")
    for cell in nb.cells:
        cell.source = source
    assert alike({"ada": nb, "bob": nb}, read_lab("labs", LAB), least=0) == []


def test_syntax_that_takes_minutes_or_ends_python_is_like_nobody(monkeypatch):
    """Each function in another one is walked once more, with all that is in it."""
    monkeypatch.setattr(similarity, "LONGEST_S", 1)
    deep = "\n".join(" " * i + "async def f():" for i in range(95)) + "\n" + (" " * 95 + "a[b]\n") * 20_000
    nb = one("right")
    for cell in nb.cells:
        cell.source = deep
    class_ = {"ada": one("right"), "copies": disguised(one("right")), "deep": nb}
    assert [(p.first, p.second) for p in alike(class_, read_lab("labs", LAB), least=0.6)] == [("ada", "copies")]
