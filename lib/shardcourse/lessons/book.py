"""The course as a web site for readers: every lesson with the outputs of its last run."""

import shutil
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from rich.console import Console

from shardcourse.lessons.folders import ROOT, build, copy_files, shown
from shardcourse.lessons.run import run_notebook

SITE = Path(__file__).parent / "site"
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
    shutil.copyfile(ROOT / "course" / "README.md", pages / "course" / "README.md")
    (pages / "questions.md").write_text(questions(sorted((ROOT / "course").glob("[01]*.ipynb"))))
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


def questions(lessons: list[Path]) -> str:
    """Return each lesson's title, as a link, and the question that it answers."""
    cells = [nbformat.read(lesson, as_version=4).cells[0].source for lesson in lessons]
    rows = [(lesson.name, *cell.split("\n\n")[:2]) for lesson, cell in zip(lessons, cells, strict=True)]
    return "\n\n".join(f"[{title.removeprefix('# ')}](course/{name})<br>\n{q.strip('*')}" for name, title, q in rows)


def as_page(executed: NotebookNode) -> NotebookNode:
    """Return the notebook without papermill's additions and without widgets, which need a kernel."""
    cells = _as_written(executed)
    for cell in cells:
        cell.metadata = {"tags": cell.metadata.get("tags", [])}
        for output in cell.get("outputs", []):
            if WIDGET in output.get("data", {}):
                output.data = {"text/markdown": "*Here stands a widget. It can be moved in JupyterLab.*"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": executed.metadata.kernelspec})


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
