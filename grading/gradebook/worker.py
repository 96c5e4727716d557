"""Workers that judge what waits in the queue: this process, or jobs of submitit, on this machine or by Slurm.

A worker needs the course's folder and nothing of nbgrader's. It takes a notebook from the queue, runs and judges it,
and writes the result to the shelf. Only the process that started the workers touches the gradebook.
"""

import copy
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import submitit
from traitlets.config import Config

from grading.boxes.sandbox import Bubblewrap
from grading.boxes.sandbox.scratch import Scratch
from grading.gradebook.nbgrader_api import Classroom
from grading.gradebook.nbgrader_executor import RefereeExecutor, close_referees
from grading.gradebook.queue import Queue, held

_POLL_S = 0.5
_LONGEST_JOB_MIN = 24 * 60


class Here:
    """A worker in this process, for one submission at a time."""

    def __init__(self, classroom: Classroom, lab: str) -> None:
        self._classroom, self._queue = classroom, Queue(classroom.queue, lab)

    def go_on(self) -> bool:
        """Judge one submission; False if none was left to judge."""
        return any(_judge_next(self._classroom, self._queue, student) for student in self._queue.students())


class Jobs:
    """Several workers on `cluster`, "local" or "slurm". They end when the queue is empty, local ones also with us."""

    def __init__(self, classroom: Classroom, lab: str, n: int, cluster: str, options: dict[str, str]) -> None:
        log, self._here = classroom.queue / lab / "log", cluster == "local"
        shutil.rmtree(log, ignore_errors=True)  # from the last time
        executor = submitit.AutoExecutor(folder=log, cluster=cluster)
        given = {f"{cluster}_{name}": value for name, value in options.items()}
        executor.update_parameters(name=f"grade-{lab}", timeout_min=_LONGEST_JOB_MIN, **given)
        at_a_time, lifeline = (n, classroom.lock) if self._here else (1, None)
        arguments = (classroom.root, classroom.settings, lab, at_a_time, lifeline, not Bubblewrap.obstacle())
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
    classroom: Classroom, lab: str, n: int, cluster: str | None, options: dict[str, str]
) -> Iterator[Here | Jobs]:
    """Start `n` workers as jobs on `cluster` (None: on this machine). One worker without a cluster is this process."""
    if cluster is None and n == 1:
        yield Here(classroom, lab)
        return
    jobs = Jobs(classroom, lab, n, cluster or "local", options)
    try:
        yield jobs
    finally:
        jobs.close()


def work(
    root: Path, settings: Config | None, lab: str, at_a_time: int, lifeline: Path | None, boxed: bool = False
) -> None:
    """Run a job: judge what no other worker judges, until nothing waits. With a `lifeline`, end when nobody holds it.

    `boxed`: the machine that starts the jobs can box submissions. RuntimeError if this one can't then.
    """
    if boxed and (obstacle := Bubblewrap.obstacle()):
        raise RuntimeError(f"submissions can't be boxed on {os.uname().nodename}: {obstacle}")
    if lifeline:
        threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    settings = copy.deepcopy(settings or Config())
    settings.RefereeExecutor.at_a_time = at_a_time
    classroom = Classroom(root, settings)
    queue = Queue(classroom.queue, lab)
    try:
        while waiting := queue.students():
            if not any([_judge_next(classroom, queue, student) for student in waiting]):
                time.sleep(_POLL_S)  # other workers have them all
    finally:
        close_referees()


def _end_with(lifeline: Path) -> None:
    while held(lifeline):
        time.sleep(_POLL_S)
    os._exit(1)  # what runs in a box ends with us


def _judge_next(classroom: Classroom, queue: Queue, student: str) -> bool:
    """Judge a submission that no other worker has or had. Return True if this worker took it."""
    with queue.claim(student) as nb:
        if nb is None:
            return False
        try:
            with closing(Scratch()) as scratch:
                files = scratch.folder("files")
                classroom.copy_files(queue.lab, student, files)
                RefereeExecutor(config=classroom.config).judged(nb, files, queue.lab, student)
        except Exception as error:  # any error belongs to this submission, and the next one waits
            queue.fail(student, f"{type(error).__name__}: {error}")
        return True
