"""The form in which notebooks are committed: without outputs, so that a diff shows only what was changed."""

import hashlib
from collections import Counter
from pathlib import Path

import nbformat
from nbformat import NotebookNode

KERNEL = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def tidied(nb: NotebookNode) -> NotebookNode:
    """Return the notebook without outputs, counts and metadata except tags. Each cell's id follows from its source."""
    cells, seen = [], Counter()
    for cell in nb.cells:
        source = cell.source.strip("\n")
        digest = hashlib.sha256(f"{cell.cell_type}\n{source}".encode()).hexdigest()[:12]
        seen[digest] += 1
        new = nbformat.v4.new_code_cell if cell.cell_type == "code" else nbformat.v4.new_markdown_cell
        cells.append(new(source, id=digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"))
        if tags := cell.metadata.get("tags"):
            cells[-1].metadata["tags"] = tags
    return nbformat.v4.new_notebook(cells=cells, metadata=nbformat.from_dict(KERNEL))


def tidy(path: Path) -> bool:
    """Rewrite the file if it is not tidy. Return True if it was rewritten."""
    before = path.read_text()
    after = nbformat.writes(tidied(nbformat.reads(before, as_version=4))) + "\n"
    if after != before:
        path.write_text(after)
    return after != before
