"""Rules for every lesson as it is committed. Each rule takes a notebook and returns a list of problems."""

import ast
import re
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from shardcourse.claims import claims
from shardcourse.lessons.tidy import tidied

SCREEN = 40  # lines of code that can be seen at once


def problems(path: Path) -> list[str]:
    """Return all problems of a lesson as it is committed."""
    nb = nbformat.read(path, as_version=4)
    nbformat.validate(nb)
    number = int(path.stem[:2]) if path.stem[:2].isdigit() else None
    found = form_problems(nb) + link_problems(nb, path.parent)
    if number is None:
        return found
    return found + anatomy_problems(nb, number) + prediction_problems(nb) + claim_problems(nb, number)


def form_problems(nb: NotebookNode) -> list[str]:
    found = []
    if nbformat.writes(nb) != nbformat.writes(tidied(nb)):
        found.append("it has outputs, or ids and metadata of its own: `make tidy`")
    if len(tagged(nb, "parameters")) != 1 or not re.search(r"^tier = None\b", tagged(nb, "parameters")[0].source, re.M):
        found.append("not one code cell is tagged parameters and says `tier = None`")
    for cell in code_cells(nb):
        if len(cell.source.splitlines()) > SCREEN:
            found.append(f"a code cell is longer than a screen: {cell.source[:40]!r}")
    return found


def anatomy_problems(nb: NotebookNode, number: int) -> list[str]:
    """Check for one question, a prediction that may stay empty, folded answers, and what to read next."""
    found, text = [], markdown(nb)
    title, question = [*re.split(r"\n+", nb.cells[0].source), ""][:2]
    if not title.startswith(f"# {number}. "):
        found.append(f"the title is {title!r}, not '# {number}. ...'")
    if not re.fullmatch(r"\*\*.*\?\*\*", question):
        found.append("no question in bold stands below the title")
    if not any("None" in cell.source for cell in tagged(nb, "prediction")):
        found.append("no cell tagged prediction waits for the student's figures")
    if text.count("<details><summary>Answer</summary>") < 2 or text.count("<details>") != text.count("</details>"):
        found.append("fewer than two exercises have a folded answer, or one is not closed")
    if "\n## What to read next\n" not in f"\n{text}\n":
        found.append("nothing to read next")
    return found


def prediction_problems(nb: NotebookNode) -> list[str]:
    """Check that a later cell reads every value that the student predicts."""
    found, cells = [], code_cells(nb)
    for i, cell in enumerate(cells):
        if "prediction" not in cell.metadata.get("tags", []):
            continue
        later = {name for c in cells[i + 1 :] for name in _names(c.source, ast.Load)}
        unread = _names(cell.source, ast.Store) - later
        found += [f"{name} is predicted, and no later cell reads it" for name in sorted(unread)]
    return found


def link_problems(nb: NotebookNode, folder: Path) -> list[str]:
    """Check that each link inside the course leads to an existing file and, if it names a heading, to that heading."""
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", _without_code(markdown(nb))):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        there = folder / name if name else None
        if there and not there.exists():
            found.append(f"a link to {name}, which is not there")
        elif anchor and anchor not in _anchors(nbformat.read(there, as_version=4) if there else nb):
            found.append(f"a link to {target}, and no heading is called so")
    return found


def claim_problems(nb: NotebookNode, number: int) -> list[str]:
    """Check that the lesson calls `claims_on_trial` if any claim belongs to it."""
    if not any(claim.lesson == number for claim in claims().values()):
        return []
    called = f"claims_on_trial({number})"
    return [] if any(called in cell.source for cell in code_cells(nb)) else [f"no cell calls {called}"]


def code_cells(nb: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in nb.cells if cell.cell_type == "code"]


def tagged(nb: NotebookNode, tag: str) -> list[NotebookNode]:
    return [cell for cell in code_cells(nb) if tag in cell.metadata.get("tags", [])]


def markdown(nb: NotebookNode) -> str:
    return "\n\n".join(cell.source for cell in nb.cells if cell.cell_type == "markdown")


def _without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S)


def _names(source: str, context: type) -> set[str]:
    return {n.id for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Name) and isinstance(n.ctx, context)}


def _anchors(nb: NotebookNode) -> set[str]:
    """Return the headings' anchors as JupyterLab makes them: with hyphens for spaces."""
    return {h.strip().replace(" ", "-") for h in re.findall(r"^#+ (.*)$", _without_code(markdown(nb)), re.M)}


if __name__ == "__main__":
    listed = [f"{path}: {problem}" for path in sys.argv[1:] for problem in problems(Path(path))]
    print("\n".join(listed) or "nothing is missing")
    sys.exit(bool(listed))
