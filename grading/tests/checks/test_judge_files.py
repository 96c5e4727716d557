"""The files that judge are told by their names."""

import ast

import pytest
from submissions import LABS, ROOT


@pytest.mark.parametrize("lab", LABS)
def test_a_file_with_a_judge_is_named_so_and_no_other(lab):
    for path in (ROOT / "grading" / "checks" / lab).glob("*.py"):
        functions = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
        has_one = any(name == "judge" or name.startswith("judge_") for name in functions)
        assert path.name.startswith("judge_") == has_one, path
