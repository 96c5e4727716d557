"""The files that judge are told by their names."""

import ast

import pytest
from submissions import LABS, ROOT


@pytest.mark.parametrize("lab", LABS)
def test_a_file_with_a_judge_is_named_so_and_no_other(lab):
    for path in (ROOT / "grading" / "checks" / lab).glob("*.py"):
        defined = ast.parse(path.read_text()).body
        names = [node.name for node in defined if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        has_one = any(name in ("judge", "Judge") or name.startswith("judge_") for name in names)
        assert path.name.startswith("judge_") == has_one, path
