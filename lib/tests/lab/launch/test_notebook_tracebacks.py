"""In a notebook a report names its cells as IPython does, and an interrupt shows no frame of the launcher."""

import pytest
import torch
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook

from shardlab.launch import notebook_tracebacks
from shardlab.launch.notebook_tracebacks import name_cells, without_frames

NAMES = {"12.py": "cell token_ddp"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('  File "/tmp/ipykernel_7/12.py", line 5, in f', "  cell token_ddp, line 5, in f"),
        ('  File "12.py", line 5, in f', "  cell token_ddp, line 5, in f"),
        ("all_reduce Float[3] at 12.py:44 in backward", "all_reduce Float[3] at cell token_ddp, line 44 in backward"),
        ('  File "/tmp/13.py", line 5, in f', '  File "/tmp/13.py", line 5, in f'),
        ("a/12.pyc:44, x12.py:4", "a/12.pyc:44, x12.py:4"),
        (f'  File "{torch.__file__}", line 5, in f', '  File "torch/__init__.py", line 5, in f'),
        (
            f'  File "{notebook_tracebacks.__file__}", line 5, in f',
            '  File "shardlab/launch/notebook_tracebacks.py", line 5, in f',
        ),
    ],
)
def test_a_cells_file_gets_the_cells_name(text, named):
    assert name_cells(text, NAMES) == named
    assert name_cells(text) == text, "there is no notebook here"


def test_an_error_shows_one_line():
    error = without_frames(KeyboardInterrupt(), "interrupted; 4 ranks ended")
    assert error._render_traceback_() == ["KeyboardInterrupt: interrupted; 4 ranks ended"]


def test_an_error_without_frames_shows_its_notes():
    error = ValueError("wrong")
    error.add_note("Explained elsewhere.")
    assert without_frames(error, "wrong")._render_traceback_() == ["ValueError: wrong", "Explained elsewhere."]


def test_an_error_of_a_rank_names_the_cell_and_its_line():
    cells = [
        "from shardlab import launch\nx = 1",
        "def fails():\n    y = x\n    return y / 0",
        'launch(fails, 2, device="cpu")',
    ]
    nb = new_notebook(cells=[new_code_cell(cell) for cell in cells])
    with pytest.raises(CellExecutionError) as caught:
        NotebookClient(nb, kernel_name="python3", timeout=60).execute()
    assert "Cell In[2], line 3, in fails\n    return y / 0\n" in str(caught.value)
