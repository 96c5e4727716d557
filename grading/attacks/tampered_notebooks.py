"""Attacks by notebooks and folders that differ from what was released."""

import json
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell

from grading.attacks.attack import CELL, LAB, of_folder


def _edit(folder: Path, change: Callable[[nbformat.NotebookNode], None]) -> None:
    path = folder / f"{LAB}.ipynb"
    nb = nbformat.read(path, as_version=4)
    change(nb)
    nbformat.write(nb, path)


def _graded(nb: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """Return the cells of checks. A written argument is graded by a person, and gains nothing by itself."""
    return [c for c in nb.cells if c.cell_type == "code" and c.metadata.get("nbgrader", {}).get("grade")]


def says_what_its_checks_are_worth(folder: Path) -> None:
    def change(nb):
        for cell in _graded(nb):
            cell.metadata.nbgrader.points = 1000
            cell.source = "1000"

    _edit(folder, change)


def deletes_the_checks(folder: Path) -> None:
    _edit(folder, lambda nb: [nb.cells.remove(cell) for cell in _graded(nb)])


def doubles_the_checks(folder: Path) -> None:
    def change(nb):
        for cell in _graded(nb):
            copy = nbformat.from_dict(cell)
            copy.id, copy.source = f"{cell.id}-2"[:64], "1000"
            nb.cells += [copy, nbformat.from_dict({**copy, "id": f"{cell.id}-3"[:64]})]

    _edit(folder, change)


def swaps_the_ids(folder: Path) -> None:
    """Swap ids, so that a cell that prints points stands where a check was."""

    def change(nb):
        answer = next(cell for cell in nb.cells if cell.metadata.nbgrader.grade_id == CELL)
        check = _graded(nb)[-1]
        names = answer.metadata.nbgrader, check.metadata.nbgrader
        names[0].grade_id, names[1].grade_id = names[1].grade_id, names[0].grade_id

    _edit(folder, change)


def adds_a_check_of_its_own(folder: Path) -> None:
    def change(nb):
        mine = {"grade": True, "grade_id": "lab2-bonus", "points": 100, "locked": True, "solution": False}
        mine |= {"schema_version": 3, "task": False, "cell_type": "code"}
        nb.cells.append(new_code_cell("100", metadata={"nbgrader": mine}))

    _edit(folder, change)


def asks_for_manual_grading(folder: Path) -> None:
    def change(nb):
        for cell in _graded(nb):
            cell.metadata.nbgrader |= {"solution": True, "locked": False}
            cell.source += "\n# worth all points"

    _edit(folder, change)


def pretends_to_be_papermill(folder: Path) -> None:
    """Use the tags by which papermill marks its own cells."""

    def change(nb):
        for cell in nb.cells:
            cell.metadata.tags = ["injected-parameters", "papermill-error-cell-tag", "parameters"]

    _edit(folder, change)


def names_a_kernel_of_its_own(folder: Path) -> None:
    kernel = {"name": "../../mine", "language": "bash", "display_name": "mine"}
    _edit(folder, lambda nb: nb.metadata.update(kernelspec=kernel, language_info={"name": "bash"}))


def brings_50_megabytes_of_output(folder: Path) -> None:
    def change(nb):
        output = nbformat.v4.new_output("stream", text="x" * (50 << 20))
        next(cell for cell in nb.cells if cell.cell_type == "code").outputs = [output]

    _edit(folder, change)


def brings_a_script(folder: Path) -> None:
    """Bring a script for the browser of a person who grades by hand: in a text cell, and in outputs."""

    def change(nb):
        script = "<script>fetch('/formgrader/api')</script><img src=x onerror=alert(1)>"
        nb.cells[3].source += script
        cell = next(cell for cell in nb.cells if cell.metadata.nbgrader.grade_id == CELL)
        cell.source += f"\nfrom IPython.display import HTML, Javascript, display\ndisplay(HTML({script!r}))"
        cell.source += "\ndisplay(Javascript('alert(1)'))"

    _edit(folder, change)


def links_to_the_gradebook(folder: Path) -> None:
    (folder / "data.db").symlink_to("../../../gradebook.db")


def links_to_another_submission(folder: Path) -> None:
    (folder / f"{LAB}.ipynb").unlink()
    (folder / f"{LAB}.ipynb").symlink_to(f"../../victim/{LAB}/{LAB}.ipynb")


def links_to_a_folder(folder: Path) -> None:
    (folder / "more").symlink_to("../../../../solutions")


def hands_in_a_pipe(folder: Path) -> None:
    os.mkfifo(folder / "data.txt")


def hands_in_a_file_without_end(folder: Path) -> None:
    with open(folder / "data.bin", "wb") as file:
        file.truncate(1 << 40)


def has_odd_names(folder: Path) -> None:
    names = ("-rf", "a\nb", "$(touch GOT)", "; touch GOT", "%s%n", "\u202egnp.ipynb", "x" * 250, f"{LAB} (1).ipynb")
    for name in (*names, b"\xff\xfe".decode(errors="surrogateescape")):
        (folder / name).write_text("{}")


def hands_in_a_hundred_thousand_folders(folder: Path) -> None:
    for i in range(100_000):
        (folder / str(i)).mkdir()


def hands_in_folders_in_each_other(folder: Path) -> None:
    """Deeper than Python's own functions go down: 900 names of one letter."""
    (folder / "/".join("d" * 900)).mkdir(parents=True)


def hands_in_a_socket_and_a_device(folder: Path) -> None:
    os.mknod(folder / "s", stat.S_IFSOCK | 0o666)
    with suppress(PermissionError):
        os.mknod(folder / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))


def is_a_folder(folder: Path) -> None:
    (folder / f"{LAB}.ipynb").rename(folder / "work.ipynb")
    (folder / f"{LAB}.ipynb").mkdir()


def hides_its_time_behind_spaces(folder: Path) -> None:
    """Say a time that only a reader of the whole file meets."""
    (folder / "timestamp.txt").write_text(" " * 200 + "0001-01-01 00:00:00 UTC; all points")


def has_a_notebook_that_grows_when_it_is_read(folder: Path) -> None:
    """Hold names in their thousands, numbers of a million digits, and lists in lists."""
    deep, long = "[" * 900 + "]" * 900, "9" * 1_000_000
    text = json.dumps({"cells": [], "nbformat": 4, "nbformat_minor": 5, "metadata": {}})
    (folder / f"{LAB}.ipynb").write_text(text.replace('"metadata": {}', f'"metadata": {{"a": {deep}, "b": {long}}}'))


def names_its_cells_almost_like_the_labs(folder: Path) -> None:
    """Give cells of its own the names of checks in letters that look alike, and the ids that grading will give."""

    def change(nb):
        for i, cell in enumerate(_graded(nb)):
            copy = nbformat.from_dict(json.loads(json.dumps(cell)))
            copy.metadata.nbgrader.grade_id = cell.metadata.nbgrader.grade_id.replace("a", "\u0430") + "\u200b"
            copy.id, copy.source = f"cell-{i + 1}", "1000"
            nb.cells.insert(0, copy)

    _edit(folder, change)


def is_no_notebook(folder: Path) -> None:
    (folder / f"{LAB}.ipynb").write_text(json.dumps({"cells": "all points", "nbformat": 4, "nbformat_minor": 5}))


ATTACKS = of_folder(
    says_what_its_checks_are_worth,
    deletes_the_checks,
    doubles_the_checks,
    swaps_the_ids,
    adds_a_check_of_its_own,
    asks_for_manual_grading,
    pretends_to_be_papermill,
    names_a_kernel_of_its_own,
    brings_50_megabytes_of_output,
    brings_a_script,
    links_to_the_gradebook,
    links_to_another_submission,
    links_to_a_folder,
    hands_in_a_pipe,
    hands_in_a_file_without_end,
    has_odd_names,
    is_no_notebook,
    hands_in_a_hundred_thousand_folders,
    hands_in_folders_in_each_other,
    hands_in_a_socket_and_a_device,
    is_a_folder,
    hides_its_time_behind_spaces,
    has_a_notebook_that_grows_when_it_is_read,
    names_its_cells_almost_like_the_labs,
)
