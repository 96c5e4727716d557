"""The queue: nobody judges what another does, a kill leaves nothing half done, and what kills is given up."""

import faulthandler
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from submissions import LAB

from grading.gradebook.nbgrader_preprocessor import graded_cells
from grading.gradebook.queue import MOST_TRIES, Queue, Task
from grading.gradebook.result_cache import made_of
from grading.judge.judge_submission import Settings, Submission
from grading.samples.sample import read_lab


def put(queue: Queue, nb=None, **how) -> None:
    """Put a notebook without files into the queue, as ada's."""
    with queue.draft() as draft:
        nb = nb or read_lab("labs", LAB)
        submission = Submission(LAB, nb, graded_cells(nb), draft / "files")
        queue.put("ada", Task(submission, made_of(submission, Settings())), **how)


def _die_judging(queue: Queue, how: Callable = os.abort) -> None:
    if (pid := os.fork()) == 0:
        faulthandler.disable()  # pytest's
        with queue.claim("ada"):
            how()
    os.waitpid(pid, 0)


def _kill_myself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("died_of_it", [False, True])
def test_only_kills_for_want_of_memory_count(died_of_it, tmp_path, monkeypatch):
    """And not those of whoever runs the grader."""
    queue = Queue(tmp_path, LAB)
    for i in range(MOST_TRIES + 2):
        put(queue)
        _die_judging(queue, _kill_myself)
        if died_of_it:
            monkeypatch.setattr("grading.gradebook.queue._machine", lambda i=i: f"oom_kill {i}")
    put(queue)
    with queue.claim("ada") as task:
        assert (task is None) == died_of_it


def test_what_ends_whoever_judges_it_is_given_up(tmp_path):
    queue = Queue(tmp_path, LAB)
    put(queue)
    for _ in range(MOST_TRIES):
        _die_judging(queue)
        assert queue.students() == ["ada"]
        put(queue)  # as the next call of `grade` does
    for _ in range(2):
        with queue.claim("ada") as task:
            assert task is None
        assert queue.students() == []
        assert "ended 3 times" in queue.problem("ada")
        put(queue)
    put(queue, anew=True)
    with queue.claim("ada") as task:
        assert task is not None


def test_a_notebook_without_ids_is_given_up_too(tmp_path):
    """nbformat draws new ones at each reading."""
    queue, nb = Queue(tmp_path, LAB), read_lab("labs", LAB)
    for i in range(MOST_TRIES + 1):
        for n, cell in enumerate(nb.cells):
            cell.id = f"cell-{i}-{n}"
        put(queue, nb)
        if i < MOST_TRIES:
            _die_judging(queue)
    with queue.claim("ada") as found:
        assert found is None


def test_who_stops_the_grading_does_not_use_up_a_try(tmp_path):
    queue = Queue(tmp_path, LAB)
    put(queue)
    for _ in range(MOST_TRIES + 1):
        with pytest.raises(KeyboardInterrupt), queue.claim("ada") as task:
            assert task is not None
            raise KeyboardInterrupt
        assert queue.students() == ["ada"]


def test_nobody_judges_what_another_does(tmp_path):
    queue = Queue(tmp_path, LAB)
    put(queue)
    with queue.claim("ada") as mine, queue.claim("ada") as again:
        assert (mine is not None, again) == (True, None)
    assert queue.students() == []


def test_a_kill_while_a_task_is_written_or_removed_leaves_none_that_is_half_there(tmp_path, monkeypatch):
    queue = Queue(tmp_path, LAB)
    put(queue)
    for at in ("rename", "rmtree"):
        if (pid := os.fork()) == 0:
            monkeypatch.setattr(*((Path, at) if at == "rename" else (shutil, at)), lambda *_, **__: os._exit(1))
            put(queue)
        os.waitpid(pid, 0)
    assert list((tmp_path / LAB / ".drafts").iterdir())
    queue.tidy()
    assert sorted(path.name for path in (tmp_path / LAB).iterdir()) in (["ada.lock"], ["ada.lock", "ada.task"])
    put(queue)
    with queue.claim("ada") as task:
        assert task is not None


def test_a_task_that_was_replaced_while_it_was_judged_stays(tmp_path):
    """By a job of a killed grader."""
    queue, nb = Queue(tmp_path, LAB), read_lab("labs", LAB)
    put(queue)
    with queue.claim("ada") as old:
        nb.cells[-1].source += "\n# second"
        put(queue, nb)
        queue.fail("ada", "a bug", old)
    assert (queue.students(), queue.problem("ada")) == (["ada"], None)
    with queue.claim("ada") as new:
        assert new.made_of != old.made_of
        assert new.submission.notebook.cells[-1].source.endswith("# second")
    assert queue.students() == []
