"""Notebooks as other programs, other people and accidents change them: files of a submission, and what is said of them.

`WORK` is graded like the notebook that it was made of. Of `TOLD` the instructor reads a sentence.
"""

import copy
import gzip
import json
from collections.abc import Callable

from submissions import LAB, ROOT

WHOLE = (ROOT / "solutions" / LAB / f"{LAB}.ipynb").read_text(encoding="utf-8")
BLANK = (ROOT / "labs" / LAB / f"{LAB}.ipynb").read_text(encoding="utf-8")
NAME = f"{LAB}.ipynb"
Cells = list[dict]


def own(kind: str, source: str) -> dict:
    return {"cell_type": kind, "metadata": {}, "source": source}


def name_of(cell: dict) -> str:
    return cell["metadata"].get("nbgrader", {}).get("grade_id", "")


def place(cells: Cells, name: str) -> int:
    return next(i for i, cell in enumerate(cells) if name_of(cell) == name)


def with_cells(change: Callable[[Cells], Cells | None], **about) -> dict[str, str]:
    """The notebook whose cells were changed, in place or by those that are returned."""
    nb = json.loads(WHOLE)
    changed = change(nb["cells"])
    nb["cells"] = nb["cells"] if changed is None else changed
    return {NAME: json.dumps(nb | about)}


def each(change: Callable[[dict], object]) -> dict[str, str]:
    return with_cells(lambda cells: [change(cell) for cell in cells] and None)


def metadata(of_cell: Callable[[int], dict] = lambda i: {}, **of_notebook) -> dict[str, str]:
    nb = json.loads(WHOLE)
    nb["metadata"] |= of_notebook
    for i, cell in enumerate(nb["cells"]):
        cell["metadata"] |= of_cell(i)
    return {NAME: json.dumps(nb)}


def split_where_jupyterlab_does(cells: Cells) -> None:
    """Both halves keep the metadata, and so the name."""
    i = place(cells, "plan_buckets")
    half = copy.deepcopy(cells[i])
    half["source"], half["id"] = "# the second half\nPLANNED = True", "half"
    cells.insert(i + 1, half)


def merged(first: str, second: str) -> Callable[[Cells], None]:
    """The first cell has the text of both, and its own metadata."""

    def change(cells: Cells) -> None:
        i, j = place(cells, first), place(cells, second)
        cells[i]["source"] = "\n\n".join("".join(cells[k]["source"]) for k in (i, j))
        cells.pop(j)

    return change


def moved(name: str, before: str) -> Callable[[Cells], None]:
    def change(cells: Cells) -> None:
        cell = cells.pop(place(cells, name))
        cells.insert(place(cells, before), cell)

    return change


def locked_edited(cells: Cells) -> None:
    cells[place(cells, "imports")]["source"] = "import torch"


def reformatted_without_metadata(cells: Cells) -> None:
    for cell in cells:
        cell["metadata"] = {}
        text = "".join(cell["source"])
        cell["source"] = text.replace('"', "'").replace("    ", "  ") if cell["cell_type"] == "code" else text


def marimo(cells: Cells) -> None:
    for i, cell in enumerate(cells):
        cell["metadata"] = {"marimo": {"name": f"cell_{i}", "config": {"hide_code": True}}}
        cell["id"] = f"Hbol{i}"


def pasted_twice(cells: Cells) -> Cells:
    return [*cells, *copy.deepcopy(cells)]


def ends_in(source: str) -> dict[str, str]:
    return with_cells(lambda cells: cells.append(own("code", source)))


def begins_in(source: str) -> dict[str, str]:
    """A task that begins so."""

    def change(cells: Cells) -> None:
        cell = cells[place(cells, "plan_buckets")]
        cell["source"] = f"{source}\n" + "".join(cell["source"])

    return with_cells(change)


OUTPUT = {"output_type": "stream", "name": "stdout", "text": "x" * (10 << 20)}
WIDGETS = {"application/vnd.jupyter.widget-state+json": {"state": {"a": {"x": "y" * (1 << 20)}}, "version_major": 2}}
DEEPNOTE = own("markdown", "<a style='x' href='https://deepnote.com?x=1' target='_blank'><img src='x'></a>")
PAPERMILL = {"papermill": {"exception": None, "status": "completed"}, "execution": {"iopub.status.busy": "2026"}}
OTHERS = {f"._{NAME}": b"\0\5\x16\7", f"__MACOSX/._{NAME}": b"\0", f".virtual_documents/{NAME}": "x = 1"}
MERGE_IN_A_CELL = "<<<<<<< HEAD\nx = 1\n=======\nx = 2\n>>>>>>> theirs"
HAND = WHOLE.rstrip().removesuffix("}")

WORK: dict[str, tuple[dict[str, str | bytes], str]] = {
    "colab": (metadata(lambda i: {"id": f"aB{i}", "outputId": "x"}, colab={"provenance": []}, accelerator="GPU"), ""),
    "colab form": (begins_in('#@title Plan { display-mode: "form" }'), ""),
    "kaggle": (metadata(lambda i: PAPERMILL | {"_uuid": "0", "trusted": True}, kaggle={"dataSources": [{}]}), ""),
    "vs code": (metadata(lambda i: {"vscode": {"languageId": "python"}}, vscode={"interpreter": {"hash": "0"}}), ""),
    "pycharm": (metadata(lambda i: {"pycharm": {"name": "#%%\n"}, "collapsed": False}), ""),
    "deepnote": (with_cells(lambda cells: cells.append(DEEPNOTE), nbformat_minor=0), ""),
    "databricks": (metadata(lambda i: {"application/vnd.databricks.v1+cell": {"nuid": i, "inputWidgets": {}}}), ""),
    "marimo": (with_cells(marimo), ""),
    "jupytext": (
        metadata(jupytext={"text_representation": {"extension": ".py", "format_name": "percent"}}, kernelspec=None),
        "",
    ),
    "formatted, no metadata": (with_cells(reformatted_without_metadata), "the released one took its place"),
    "slides, read-only cells": (metadata(lambda i: {"slideshow": {"slide_type": "-"}, "editable": False}), ""),
    "many tags": (metadata(lambda i: {"tags": ["hide-input", "remove-cell", "raises-exception"]}), ""),
    "minor 99": (with_cells(lambda cells: None, nbformat_minor=99), ""),
    "nbformat of text": (with_cells(lambda cells: None, nbformat="4", nbformat_minor=None), ""),
    "no ids, some twice": (
        with_cells(lambda cells: [c.pop("id") if i % 3 else c.update(id="a") for i, c in enumerate(cells)] and None),
        "",
    ),
    "nothing but cells": ({NAME: json.dumps({"cells": json.loads(WHOLE)["cells"]})}, ""),
    "no outputs, no counts": (each(lambda c: [c.pop(key, None) for key in ("outputs", "execution_count", "id")]), ""),
    "outputs of nothing": (each(lambda c: c.update(outputs=None) if c["cell_type"] == "code" else None), ""),
    "10 MiB of output": (each(lambda c: c.update(outputs=[OUTPUT]) if name_of(c) == "plan_buckets" else None), ""),
    "widgets": (metadata(widgets=WIDGETS), ""),
    "a cell without text": (with_cells(lambda cells: cells.append({"cell_type": "code", "metadata": {}})), ""),
    "a cell of null": (with_cells(lambda cells: cells.append(own("markdown", "") | {"source": None})), ""),
    "old Mac": (each(lambda c: c.update(source="".join(c["source"]).replace("\n", "\r"))), "Lines ended as on Windows"),
    "two marks": ({NAME: f"\ufeff\ufeff{WHOLE}"}, "characters before or after the notebook"),
    "zeros at its end": ({NAME: WHOLE.encode() + bytes(4096)}, "characters before or after the notebook"),
    "UTF-16 of a Mac": ({NAME: WHOLE.encode("utf-16-be")}, "The file's encoding is utf-16-be"),
    "NaN and infinity": ({NAME: HAND + ', "a": [NaN, -Infinity]}'}, ""),
    "a long integer": ({NAME: HAND + f', "a": {"9" * 5000}}}'}, ""),
    "cells twice in the file": ({NAME: '{"cells": [], ' + WHOLE.lstrip().removeprefix("{")}, ""),
    "split": (with_cells(split_where_jupyterlab_does), "`plan_buckets` was there 2 times"),
    "task with its check": (with_cells(merged("plan_buckets", "lab2-plan")), "`lab2-plan` was missing: it was put"),
    "imports with a task": (with_cells(merged("imports", "plan_buckets")), "the one with additions runs after it"),
    "check with the next task": (with_cells(merged("lab2-throughput", "plan_buckets")), "runs in a cell of its own"),
    "check above its task": (with_cells(moved("lab2-plan", "plan_buckets")), "run below it: `lab2-plan`"),
    "locked cell edited": (with_cells(locked_edited), "the released one took its place."),
    "all pasted again": (with_cells(pasted_twice), "was there 2 times"),
    "a task of Markdown": (
        each(lambda c: c.update(cell_type="markdown") if name_of(c) == "plan_buckets" else 0),
        "was a markdown cell: it is a code",
    ),
    "a task of raw text": (
        each(lambda c: c.update(cell_type="raw") if name_of(c) == "plan_buckets" else 0),
        "was a raw cell",
    ),
    "own window": (begins_in("import matplotlib\nmatplotlib.use('TkAgg')"), "`%matplotlib` was set to `inline`"),
    "any window": (ends_in("%matplotlib"), "`%matplotlib` was set to `inline`"),
    "magics": (ends_in("%%bash\necho x"), ""),
    "pip, input, await": (ends_in("!pip install einops\nx = input()\nawait main()"), ""),
    "conflict in a cell": (ends_in(MERGE_IN_A_CELL), "has the marks of a merge conflict"),
    "beside what programs leave": ({NAME: WHOLE} | OTHERS, ""),
    "beside an older copy": ({NAME: WHOLE, f"{LAB}-Copy1.ipynb": BLANK}, ""),
    "beside a page and a PDF": ({NAME: WHOLE, f"{LAB}.html": "<html>", f"{LAB}.pdf": b"%PDF-"}, ""),
}
NOTHING_DONE = {"blank beside what programs leave": {NAME: BLANK} | OTHERS}  # it is graded, and gets nothing
TOLD: dict[str, tuple[dict[str, str | bytes], str]] = {
    "trailing comma": ({NAME: HAND + ",}"}, "can't be read as a notebook (JSONDecodeError"),
    "notebook in quotes": ({NAME: json.dumps(WHOLE)}, "can't be read as a notebook"),
    "two in one": ({NAME: WHOLE + WHOLE}, "can't be read as a notebook (JSONDecodeError: Extra data"),
    "gzip": ({NAME: gzip.compress(WHOLE.encode())}, "is a gzip archive"),
    "PDF": ({NAME: b"%PDF-1.7\n%\xe2\xe3"}, "is a PDF"),
    "LFS": ({NAME: "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"}, "is Git LFS's note"),
    "script": ({NAME: "# %%\nimport torch\n\ndef plan_buckets(): pass\n"}, "is a program, and no notebook"),
    "web archive": ({NAME: '<?xml version="1.0"?><plist>'}, "is a page of a website"),
    "spaces": ({NAME: " \n\n"}, "is empty"),
    "zeros": ({NAME: bytes(4096)}, "is empty"),
    "link to Drive": (
        {NAME: '{"doc_id": "1", "url": "https://colab.research.google.com/drive/1"}'},
        "no list of cells",
    ),
    "no cell": ({NAME: '{"cells": [], "metadata": {}}'}, "has no task and no check"),
    "folder of its name": ({f"{NAME}/{NAME}": WHOLE}, f"there is '{NAME}/{NAME}'"),
    "wrong case": ({"Lab2_DDP.ipynb": WHOLE}, "there is 'Lab2_DDP.ipynb'"),
    "half loaded": ({f"{NAME}.crdownload": WHOLE}, f"there is '{NAME}.crdownload'"),
    "script alone": ({f"{LAB}.py": "import torch"}, f"there is no {NAME}"),
    "50 MiB of output": ({NAME: WHOLE + " " * (21 << 20)}, "and may have 20 MiB: ask for it without its outputs"),
}
