"""An error of ranks says where its message is explained, and says nothing if the index does not know it."""

import subprocess
import sys

import pytest
from deadlines import deadline_s
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook

from shardlab.launch import LaunchError, launch
from shardlab.launch.link_error_to_explanation import explained
from shardlive import Ranks
from shardwhy.index import load

READY_ONCE = "Expected to mark a variable ready only once. This error is caused by one of the following reasons"
NOTE = "Explained in course/messages.md#ready_only_once and in"


def fails(words: str) -> None:
    raise RuntimeError(words)


def test_a_known_message_of_a_rank_names_its_entry_and_lesson():
    with pytest.raises(LaunchError) as caught:
        launch(fails, 2, READY_ONCE, device="cpu", stream=False)
    assert [note.startswith(NOTE) for note in caught.value.__notes__] == [True]
    entry = load()["ready_only_once"]
    assert f'{entry.lesson}, "{entry.section}"' in caught.value.__notes__[0]


@pytest.mark.parametrize("words", ["my own words", "", "loss is 3.1, which is not below 2"])
def test_an_error_of_ones_own_gets_no_note(words):
    with pytest.raises(LaunchError) as caught:
        launch(fails, 2, words, device="cpu", stream=False)
    assert not hasattr(caught.value, "__notes__")


def test_a_warning_and_a_consequence_are_no_cause():
    for words in (
        f"UserWarning: {READY_ONCE}",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED",
    ):
        assert not hasattr(explained(RuntimeError(words)), "__notes__"), words


def test_the_index_is_read_once(monkeypatch):
    explained(RuntimeError("the first"))
    monkeypatch.setattr("shardwhy.index.load", lambda: pytest.fail("read again"))
    assert explained(RuntimeError(READY_ONCE)).__notes__[0].startswith(NOTE)


def test_live_ranks_say_it_too():
    with Ranks(2, device="cpu") as ranks, pytest.raises(RuntimeError) as caught:
        ranks.run(f"raise RuntimeError({READY_ONCE!r})")
    assert caught.value.__notes__[0].startswith(NOTE)


def test_a_notebook_ends_the_error_with_the_note():
    cells = ["from shardlab import launch", f"def fails():\n    raise RuntimeError({READY_ONCE!r})", "launch(fails, 2)"]
    nb = new_notebook(cells=[new_code_cell(cell) for cell in cells])
    with pytest.raises(CellExecutionError) as caught:
        NotebookClient(nb, kernel_name="python3", timeout=int(deadline_s(60))).execute()
    assert NOTE in str(caught.value)


@pytest.mark.parametrize(
    "lost",
    [
        "sys.modules['shardwhy'] = None",
        "import shardwhy.index as i, pathlib; i.load.__defaults__ = (pathlib.Path('no'),)",
    ],
    ids=["no package", "no data"],
)
def test_without_the_index_an_error_is_as_it_was(lost):
    """In a submission's box there is no index."""
    program = (
        f"import sys; {lost}\n"
        "from shardlab.launch.link_error_to_explanation import explained\n"
        f"assert not hasattr(explained(RuntimeError({READY_ONCE!r})), '__notes__')"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_an_error_whose_kind_alone_is_known_gets_no_note():
    error = explained(RuntimeError("Traceback (most recent call last):\n  File 'a.py', line 3\nKeyError: 'loss'"))
    assert not getattr(error, "__notes__", [])
