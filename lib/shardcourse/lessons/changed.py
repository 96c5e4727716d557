"""The choice of lessons to run again: all that changed since their last run, and a quarter of the others in turn."""

import ast
import hashlib
import json
import re
from pathlib import Path

import nbformat
import torch

import shardplan.published
from shardcourse.claims.claim import FILE as CLAIMS
from shardcourse.lessons.cells import as_python, code_cells
from shardcourse.repository import ROOT

PACKAGES = {folder.name: folder for folder in (ROOT / "lib").glob("shard*") if (folder / "__init__.py").exists()}
PACKAGES["grading"] = ROOT / "grading"
DATA = [CLAIMS, shardplan.published.FILE]
TURNS = 4


def digest(notebook: Path) -> str:
    """Hash all that decides how a notebook runs: its cells, our modules, files beside it, data, and torch's version."""
    nb = nbformat.read(notebook, as_version=4)
    found = hashlib.sha256(
        "\0".join([torch.__version__, *(cell.cell_type + cell.source for cell in nb.cells)]).encode()
    )
    program = "\n".join(as_python(cell.source) for cell in code_cells(nb))
    beside = [
        file for file in sorted(notebook.parent.glob("*.py")) if re.search(rf"^import {file.stem}\b", program, re.M)
    ]
    for file in [*sorted(imported(program)), *beside, *DATA]:
        found.update(file.read_bytes())
    return found.hexdigest()[:16]


def chosen(notebooks: list[Path], record: Path, turn: int) -> list[Path]:
    """Return the notebooks whose digest differs from `record` (of `shardlab run`), and every fourth of the others."""
    ran = {o["notebook"]: o.get("digest") for o in json.loads(record.read_text())["notebooks"] if not o["problems"]}
    same = [notebook for notebook in notebooks if ran.get(notebook.stem) == digest(notebook)]
    due = set(same[turn % TURNS :: TURNS])
    return [notebook for notebook in notebooks if notebook not in same or notebook in due]


def imported(source: str) -> set[Path]:
    """Return the files of our packages that a program imports, directly or indirectly, inside functions too."""
    found: set[Path] = set()
    waiting = [source]
    while waiting:
        for node in ast.walk(ast.parse(waiting.pop())):
            for name in _names(node):
                for file in _files(name) - found:
                    found.add(file)
                    waiting.append(file.read_text())
    return found


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def _files(name: str) -> set[Path]:
    """Return the files of a, a.b and a.b.c for the name `a.b.c`, as far as they are our modules."""
    first, *rest = name.split(".")
    if first not in PACKAGES:
        return set()
    place, found = PACKAGES[first], set()
    for part in [None, *rest]:
        place = place / part if part else place
        found |= {file for file in (place / "__init__.py", place.with_suffix(".py")) if file.is_file()}
    return found
