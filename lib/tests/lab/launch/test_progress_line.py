"""The line that says how long something has been taking: in a notebook that somebody has open, and nowhere else."""

import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

OPENED = "os.environ['JPY_SESSION_NAME'] = 'a.ipynb'  # as Jupyter's server does"
WAIT = """
with progress_line.waiting("{what}"):
    time.sleep({seconds})
print("{what}: done")
"""
SET_UP = """
import os, threading, time
from shardlab.launch import progress_line
progress_line.SILENT_S = 0.2

def lines():
    return sum(progress_line._show in getattr(thread, "_args", ()) for thread in threading.enumerate())
"""
FAILS = """
with progress_line.waiting("fails"):
    time.sleep(0.5)
    assert lines() == 1
    1 / 0
"""
CELLS = {
    "set-up": SET_UP,
    "nobody looks": WAIT.format(what="nobody looks", seconds=0.5),
    "soon": OPENED + WAIT.format(what="soon", seconds=0),
    "long": WAIT.format(what="long", seconds=1.6),
    "fails": FAILS,
    "afterwards": "time.sleep(0.5)\nprint(lines())",
}


@pytest.fixture(scope="module")
def shown() -> dict[str, list]:
    """By cell: all that was displayed while it ran, in order, and None for nothing; and its outputs in the end."""
    cells = {name: new_code_cell(source) for name, source in CELLS.items()}
    cells["fails"].metadata["tags"] = ["raises-exception"]
    client = NotebookClient(new_notebook(cells=list(cells.values())), kernel_name="python3")
    process_message, displayed = client.process_message, {name: [] for name in cells}

    def listen(message, cell, cell_index):
        if message["msg_type"] in ("display_data", "update_display_data"):
            displayed[list(cells)[cell_index]].append(message["content"]["data"].get("text/plain"))
        return process_message(message, cell, cell_index)

    client.process_message = listen
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("JPY_SESSION_NAME", raising=False)
        client.execute()
    return {name: (displayed[name], cell.outputs) for name, cell in cells.items()}


def test_it_counts_and_leaves_nothing(shown):
    displayed, left = shown["long"]
    assert displayed[:2] == ["long: 0 s", "long: 1 s"] and displayed[-1] is None
    assert [o.get("data", {}) for o in left if o.output_type == "display_data"] == [{}]
    assert left[-1].text == "long: done\n"


def test_what_is_over_soon_shows_nothing(shown):
    assert shown["soon"][0] == []


def test_a_run_that_nobody_looks_at_shows_nothing(shown):
    displayed, left = shown["nobody looks"]
    assert displayed == [] and [o.output_type for o in left] == ["stream"]


def test_an_error_ends_it_too(shown):
    """Or the line would count for ever, under whatever cell runs then."""
    assert [o.ename for o in shown["fails"][1] if o.output_type == "error"] == ["ZeroDivisionError"]
    displayed, left = shown["afterwards"]
    assert displayed == [] and [o.text for o in left] == ["0\n"]
