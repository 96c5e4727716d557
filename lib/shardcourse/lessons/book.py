"""The course as a web site for readers: every lesson with the outputs of its last run."""

import ast
import re
import shutil
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from rich.console import Console

from shardcourse.lessons.cells import as_python
from shardcourse.lessons.folders import build, copy_files, shown
from shardcourse.lessons.run import run_notebook
from shardcourse.repository import ROOT

SITE = Path(__file__).parent / "site"
PARTS = {
    "Ground": range(3),
    "Data parallel": range(3, 4),
    "Sharding": range(4, 7),
    "Memory": range(7, 10),
    "At scale": range(10, 12),
    "When it goes wrong": range(12, 14),
    "Beyond": range(14, 100),
}
WIDGET = "application/vnd.jupyter.widget-view+json"
RUN, BOOK = build("run"), build("book")


def make_book(console: Console) -> bool:
    """Write build/book/html. If a lesson fails or a link is broken, print the problem and return False."""
    pages = BOOK / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    copy_files(SITE, pages)
    if problems := _add_lessons(pages / "course", console):
        console.print("\n".join(problems), style="red", markup=False)
        return False
    for name in ("README.md", "SOURCES.md", "messages.md", "train.py"):
        shutil.copyfile(ROOT / "course" / name, pages / "course" / name)
    shutil.copyfile(ROOT / "lib" / "pictures" / "ddp_buckets.png", pages / "ddp_buckets.png")
    write_index(pages / "index.md", sorted((ROOT / "course").glob("[0-9]*.ipynb")))
    for lab in sorted((ROOT / "labs").glob("*/*.ipynb")):
        target = pages / lab.relative_to(ROOT)
        target.parent.mkdir(parents=True)
        shutil.copyfile(lab, target)
    if typeset(pages, BOOK / "html"):
        console.print(f"open {shown(BOOK / 'html' / 'index.html')}", highlight=False)
        return True
    return False


def typeset(pages: Path, html: Path) -> bool:
    """Run Sphinx. If there is any warning, print it and return False."""
    from sphinx.cmd.build import main

    return main(["-q", "-W", "--keep-going", "-b", "html", str(pages), str(html)]) == 0


def _add_lessons(folder: Path, console: Console) -> list[str]:
    """Add every lesson to `folder` and return the problems. Run a lesson first if its last run is out of date."""
    folder.mkdir()
    RUN.mkdir(parents=True, exist_ok=True)
    problems = []
    for lesson in sorted((ROOT / "course").glob("*.ipynb")):
        ran = RUN / lesson.name
        if not is_run_of(ran, lesson):
            console.print(f"running {lesson.stem}", highlight=False)
            problems += [f"{lesson.name}: {problem}" for problem in run_notebook(lesson, ran, {"tier": "cpu"}).problems]
        nbformat.write(as_page(nbformat.read(ran, as_version=4)), folder / lesson.name)
    return problems


def write_index(index: Path, lessons: list[Path]) -> None:
    """Write the list of lessons into the first page: by part, each with its minutes and the question it answers."""
    words = []
    for part, numbers in PARTS.items():
        chosen = [lesson for lesson in lessons if int(lesson.name[:2]) in numbers]
        entries = [f"course/{lesson.stem}" for lesson in chosen]
        listed = "\n\n".join(map(_entry, chosen))
        tree = "\n".join(["```{toctree}", ":hidden:", f":caption: {part}", "", *entries, "```"])
        words += [f"## {part}\n\n{listed}\n\n{tree}"] if chosen else []
    index.write_text(index.read_text().replace("<!-- lessons -->", "\n\n".join(words)))


def _entry(lesson: Path) -> str:
    first = nbformat.read(lesson, as_version=4).cells[0].source
    title, question = first.split("\n\n")[:2]
    minutes = re.search(r"About \d+ minutes", first)
    time = f" <small>({minutes[0].lower()})</small>" if minutes else ""
    return f"[{title.removeprefix('# ')}](course/{lesson.name}){time}<br>\n{question.strip('*')}"


def as_page(executed: NotebookNode) -> NotebookNode:
    """Return the notebook without papermill's additions and without widgets, which need a kernel.

    Cells that only import are folded. A figure's words, its text form, become the alternative text of its picture.
    """
    cells = _as_written(executed)
    for cell in cells:
        tags = cell.metadata.get("tags", [])
        cell.metadata = {"tags": [*tags, "hide-input"] if cell.cell_type == "code" and _only_imports(cell) else tags}
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if WIDGET in data:
                output.data = {"text/markdown": "*Here stands a widget. It can be moved in JupyterLab.*"}
            elif "image/png" in data:
                cell.metadata["mystnb"] = {"image": {"alt": " ".join(data.get("text/plain", "").split())}}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": executed.metadata.kernelspec})


def _only_imports(cell: NotebookNode) -> bool:
    body = ast.parse(as_python(cell.source)).body
    return bool(body) and all(isinstance(node, ast.Import | ast.ImportFrom) for node in body) and not cell.outputs


def is_run_of(ran: Path, lesson: Path) -> bool:
    """Return True if `ran` is a complete run of the lesson's present source."""
    if not ran.is_file():
        return False
    executed = nbformat.read(ran, as_version=4)
    finished = all(cell.execution_count for cell in executed.cells if cell.cell_type == "code" and cell.source.strip())
    sources = [cell.source.strip("\n") for cell in _as_written(executed)]
    return finished and sources == [cell.source for cell in nbformat.read(lesson, as_version=4).cells]


def _as_written(executed: NotebookNode) -> list[NotebookNode]:
    """Return the cells, without the parameter cell that papermill injected."""
    return [cell for cell in executed.cells if "injected-parameters" not in cell.metadata.get("tags", [])]
