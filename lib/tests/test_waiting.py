"""The line that says how long something has been taking: in a notebook that somebody has open, and nowhere else."""

import os

import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from shardlab.environ import environ

CELL = """
import time
from shardlab import waiting
waiting.SILENT_S = 0.2
with waiting.waiting("thinking"):
    time.sleep({seconds})
print("thought")
"""


def outputs(seconds: float, opened_by_server: bool) -> list:
    """Of a cell that waits so long, and everything that was shown meanwhile."""
    cell, shown = new_code_cell(CELL.format(seconds=seconds)), []
    client = NotebookClient(new_notebook(cells=[cell]), kernel_name="python3")
    process_message = client.process_message

    def listen(message, *args):
        if message["msg_type"] in ("display_data", "update_display_data"):
            shown.append(message["content"]["data"].get("text/plain"))
        return process_message(message, *args)

    client.process_message = listen
    with environ({"JPY_SESSION_NAME": "a.ipynb"} if opened_by_server else {}):
        client.execute()
    return shown, cell.outputs


def test_it_counts_and_leaves_nothing():
    shown, left = outputs(1.6, opened_by_server=True)
    assert shown[:2] == ["thinking: 0 s", "thinking: 1 s"] and shown[-1] is None
    assert [o.get("data", {}) for o in left if o.output_type == "display_data"] == [{}]
    assert left[-1].text == "thought\n"


def test_what_is_over_soon_shows_nothing():
    assert outputs(0.0, opened_by_server=True)[0] == []


@pytest.mark.skipif("JPY_SESSION_NAME" in os.environ, reason="these tests run in a notebook")
def test_a_run_that_nobody_looks_at_shows_nothing():
    shown, left = outputs(0.5, opened_by_server=False)
    assert shown == [] and [o.output_type for o in left] == ["stream"]
