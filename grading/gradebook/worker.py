"""Workers that judge what waits in the queue: this process, or jobs of submitit, on this machine or by Slurm.

A worker needs the course's folder, but nothing of nbgrader's. It takes a submission from the queue, judges it as it is
stored there, and writes the result to the shelf. Only the process that started the workers touches the gradebook.
"""

import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import submitit

from grading.boxes.sandbox import Bubblewrap
from grading.gradebook.queue import Queue, held
from grading.gradebook.result_cache import Shelf, grader
from grading.judge.judge_submission import JUDGE, Settings

_POLL_S = 0.5
_LONGEST_JOB_MIN = 24 * 60
OTHER_GRADER = (
    "the grader's files have changed since it began, or this machine has another Python or PyTorch: grade again"
)


class Here:
    """A worker in this process, for one submission at a time."""

    def __init__(self, queue: Queue, shelf: Shelf, settings: Settings) -> None:
        self._queue, self._shelf, self._settings = queue, shelf, settings

    def go_on(self) -> bool:
        """Judge one submission. Return False if there was none to judge."""
        return any(_judge_next(self._queue, self._shelf, self._settings, student) for student in self._queue.students())


class Jobs:
    """Several workers on `cluster`, "local" or "slurm". They end when the queue is empty, local ones also with us."""

    def __init__(
        self,
        queue: Queue,
        shelf: Shelf,
        settings: Settings,
        n: int,
        cluster: str,
        options: dict[str, str],
        lifeline: Path,
    ) -> None:
        log, self._here = queue.folder / "log", cluster == "local"
        shutil.rmtree(log, ignore_errors=True)  # from the last time
        executor = submitit.AutoExecutor(folder=log, cluster=cluster)
        given = {f"{cluster}_{name}": value for name, value in options.items()}
        executor.update_parameters(name=f"grade-{queue.lab}", timeout_min=_LONGEST_JOB_MIN, **given)
        settings = replace(settings, at_a_time=n if self._here else 1)
        arguments = (queue, shelf, settings, lifeline if self._here else None, not Bubblewrap.obstacle())
        with executor.batch():
            self._jobs = [executor.submit(work, *arguments) for _ in range(n)]

    def go_on(self) -> bool:
        time.sleep(_POLL_S)
        return not all(job.done() for job in self._jobs)

    def close(self) -> None:
        """Cancel Slurm jobs. Local jobs end by themselves, at an empty queue or when we release their lifeline."""
        for job in [] if self._here else self._jobs:
            job.cancel(check=False)


@contextmanager
def workers(
    queue: Queue, shelf: Shelf, settings: Settings, n: int, cluster: str | None, options: dict[str, str], lifeline: Path
) -> Iterator[Here | Jobs]:
    """Start `n` workers as jobs on `cluster` (None: on this machine). One worker without a cluster is this process."""
    if cluster is None and n == 1:
        yield Here(queue, shelf, settings)
        return
    jobs = Jobs(queue, shelf, settings, n, cluster or "local", options, lifeline)
    try:
        yield jobs
    finally:
        jobs.close()


def work(queue: Queue, shelf: Shelf, settings: Settings, lifeline: Path | None, boxed: bool = False) -> None:
    """Run a job: judge what other workers do not judge, until nothing waits or no process holds `lifeline`.

    `boxed`: the machine that starts the jobs can box submissions. RuntimeError if this one can't then.
    """
    if boxed and (obstacle := Bubblewrap.obstacle()):
        raise RuntimeError(f"submissions can't be boxed on {os.uname().nodename}: {obstacle}")
    if lifeline:
        threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    try:
        while waiting := queue.students():
            if not any([_judge_next(queue, shelf, settings, student) for student in waiting]):
                time.sleep(_POLL_S)  # other workers have them all
    finally:
        JUDGE.close()


def _end_with(lifeline: Path) -> None:
    while held(lifeline):
        time.sleep(_POLL_S)
    os._exit(1)  # what runs in a box ends with us


def _judge_next(queue: Queue, shelf: Shelf, settings: Settings, student: str) -> bool:
    """Judge a submission that no other worker has or had. Return True if this worker took it."""
    with queue.claim(student) as task:
        if task is None:
            return False
        try:
            if task.made_of["grader"] != grader():
                raise RuntimeError(f"on {os.uname().nodename}: {OTHER_GRADER}")
            shelf.keep(queue.lab, student, task.made_of, JUDGE.judge(task.submission, settings))
        except Exception as error:  # any error belongs to this submission, and the next one waits
            queue.fail(student, f"{type(error).__name__}: {error}", task)
        return True
