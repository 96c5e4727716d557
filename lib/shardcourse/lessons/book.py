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
    add_texts(pages)
    write_index(pages / "index.md", ROOT / "course")
    if typeset(pages, BOOK / "html"):
        console.print(f"open {shown(BOOK / 'html' / 'index.html')}", highlight=False)
        return True
    return False


def add_texts(pages: Path) -> None:
    """Add what needs no run: the texts beside the lessons, and the labs. What a page links to must be a page."""
    patterns = "course/*.md", "course/train.py", "labs/*.md", "labs/*/*.ipynb"
    for file in (file for pattern in patterns for file in ROOT.glob(pattern)):
        target = pages / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    shutil.copyfile(ROOT / "lib" / "pictures" / "ddp_buckets.png", pages / "ddp_buckets.png")


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


def write_index(index: Path, course: Path) -> None:
    """Write the list of lessons into the first page: by the README's parts, each with its minutes and its question."""
    words = []
    for part, names in parts((course / "README.md").read_text()).items():
        entries = [f"course/{name}" for name in names]
        listed = "\n\n".join(_entry(course / f"{name}.ipynb") for name in names)
        tree = "\n".join(["```{toctree}", ":hidden:", f":caption: {part}", "", *entries, "```"])
        words.append(f"## {part}\n\n{listed}\n\n{tree}")
    index.write_text(index.read_text().replace("<!-- lessons -->", "\n\n".join(words)))


def parts(readme: str) -> dict[str, list[str]]:
    """Return the names of the lessons in each part of the course, as its README lists them."""
    listed = readme.split("\n## The lessons\n")[1].split("\n## ")[0]
    sections = re.split(r"^### (.+)$", listed, flags=re.M)[1:]
    names = [re.findall(r"^\|[^|]*\| \[[^]]+\]\((\w+)\.ipynb\)", section, re.M) for section in sections[1::2]]
    return {part: found for part, found in zip(sections[::2], names, strict=True) if found}


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
