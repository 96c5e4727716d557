"""Rules for every lesson as it is committed. Each rule takes a notebook and returns a list of problems."""

import ast
import re
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from shardcourse.claims import claims
from shardcourse.lessons.cells import as_python, code_cells, markdown, tagged
from shardcourse.lessons.lengths import length_problems
from shardcourse.lessons.tidy import tidied

SCREEN = 40  # lines of code that can be seen at once
MOST_CLAIMS = 3  # that a lesson puts on trial; the appendix has all


def problems(path: Path) -> list[str]:
    """Return all problems of a lesson as it is committed."""
    nb = nbformat.read(path, as_version=4)
    nbformat.validate(nb)
    number = number_of(path)
    found = form_problems(nb) + table_problems(markdown(nb)) + link_problems(nb, path.parent)
    if not number:
        return found
    found += length_problems(nb)
    parts = [nbformat.read(part, as_version=4) for part in path.parent.glob(f"{path.name[:2]}*.ipynb")]
    return found + anatomy_problems(nb, number) + prediction_problems(nb) + claim_problems(parts, number)


def number_of(path: Path) -> str:
    """Return a lesson's number as its title has it: "5a" of 05a_zero_3_from_scratch.ipynb; "" of an appendix."""
    found = re.match(r"0?(\d+[ab]?)_", path.name)
    return found[1] if found else ""


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


def anatomy_problems(nb: NotebookNode, number: str) -> list[str]:
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


def table_problems(text: str) -> list[str]:
    """Check that each row of a table stands below its head: after a blank line it would be shown as plain text."""
    found = []
    for rows in re.findall(r"(?:^[ >]*\|.*\n?)+", re.sub(r"```.*?```", "", text, flags=re.S), re.M):
        first, second = [*rows.strip().split("\n"), ""][:2]
        if not re.fullmatch(r"[ >]*\|(\s*:?-+:?\s*\|)+\s*", second):
            found.append(f"a row outside its table: {first[:60]!r}")
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
        elif anchor and anchor not in _anchors(_text(there) if there else markdown(nb)):
            found.append(f"a link to {target}, and no heading is called so")
    return found


def claim_problems(parts: list[NotebookNode], number: str) -> list[str]:
    """Check that one part of the lesson (5a, 5b) calls `claims_on_trial` if any claim belongs to it."""
    lesson = int(number.rstrip("ab"))
    if not any(claim.lesson == lesson for claim in claims().values()):
        return []
    called = re.compile(rf"claims_on_trial\({lesson}\b(.*?)\)", re.S)
    calls = [call[1] for nb in parts for c in code_cells(nb) for call in called.finditer(c.source)]
    if len(calls) != 1:
        return [f"{len(calls)} cells call claims_on_trial({lesson}, ...), not one"]
    most = len(re.findall(r'"[\w-]+"', calls[0])) or MOST_CLAIMS + 1
    return [f"claims_on_trial({lesson}, ...) does not name at most {MOST_CLAIMS} claims"] if most > MOST_CLAIMS else []


def _without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S)


def _names(source: str, context: type) -> set[str]:
    return {
        n.id for n in ast.walk(ast.parse(as_python(source))) if isinstance(n, ast.Name) and isinstance(n.ctx, context)
    }


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8") if page.suffix == ".md" else markdown(nbformat.read(page, as_version=4))


def _anchors(text: str) -> set[str]:
    """Return the headings' anchors as JupyterLab makes them: with hyphens for spaces."""
    return {h.strip().replace(" ", "-") for h in re.findall(r"^#+ (.*)$", _without_code(text), re.M)}


if __name__ == "__main__":
    listed = [f"{path}: {problem}" for path in sys.argv[1:] for problem in problems(Path(path))]
    print("\n".join(listed) or "nothing is missing")
    sys.exit(bool(listed))
