"""The cells of a notebook by kind, and their Python without the notebook's own commands."""

import re

from nbformat import NotebookNode


def code_cells(nb: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in nb.cells if cell.cell_type == "code"]


def tagged(nb: NotebookNode, tag: str) -> list[NotebookNode]:
    return [cell for cell in code_cells(nb) if tag in cell.metadata.get("tags", [])]


def markdown(nb: NotebookNode) -> str:
    return "\n\n".join(cell.source for cell in nb.cells if cell.cell_type == "markdown")


def as_python(source: str) -> str:
    """Return a cell's Python. `%`, `%%` and `!` lines become empty, so the body of a `%%ranks` cell stays."""
    return re.sub(r"^[%!].*$", "", source, flags=re.M)
