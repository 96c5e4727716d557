"""A package's docstring says in which order to read its files: each file that it names exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = sorted(p.parent for p in [*ROOT.glob("lib/shard*/**/__init__.py"), *ROOT.glob("grading/**/__init__.py")])


def named(docstring: str) -> list[str]:
    """Return the names of files at the beginnings of lines, and those before a bracket that explains them."""
    begin = re.findall(r"^ *([a-z_0-9]+(?:/?, [a-z_0-9]+)*)/?(?: {2,}| ──> )\S", docstring, re.M)
    names = [name for names in begin for name in re.split("/?, ", names)]
    return names + re.findall(r"`([a-z][a-z_0-9]+)`(?=[ ,]*\()", docstring)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_each_file_that_a_package_names_exists(package):
    names = named(ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or "")
    there = {p.stem for folder in (package, ROOT / "lib") for p in folder.iterdir()}
    assert [name for name in names if name not in there] == []


def test_names_are_found_in_each_form():
    doc = "Grades.\n\n  boxes/     run\n  a, b      both\nqueue ──> later\nSee `x`, and `full` (whole)."
    assert named(doc) == ["boxes", "a", "b", "queue", "full"]
