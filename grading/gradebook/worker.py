"""Who judges what waits in the queue: this process, or jobs of submitit, on this machine or by Slurm.

A worker needs the course's folder and nothing of nbgrader's: it takes a notebook from the queue, runs and judges it,
and puts what came of it on the shelf. Only who started the workers touches the gradebook.
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
from grading.gradebook.classroom import Classroom
from grading.gradebook.nbgrader_executor import RefereeExecutor, close_referees
from grading.gradebook.queue import Queue, held

_POLL_S = 0.5
_LONGEST_JOB_MIN = 24 * 60


class Here:
    """In this process, one submission at a time."""

    def __init__(self, classroom: Classroom, lab: str) -> None:
        self._classroom, self._queue = classroom, Queue(classroom.queue, lab)

    def go_on(self) -> bool:
        """Do some work, or wait for it; False if nobody works any more."""
        return any(_judge_next(self._classroom, self._queue, student) for student in self._queue.students())


class Jobs:
    """Some workers, `cluster` "local" or "slurm"; they end when the queue is empty, or with us on this machine."""

    def __init__(self, classroom: Classroom, lab: str, n: int, cluster: str, options: dict[str, str]) -> None:
        log, self._here = classroom.queue / lab / "log", cluster == "local"
        shutil.rmtree(log, ignore_errors=True)  # of the last time
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
        """Those on this machine end by themselves: when the queue is empty, or when we let go of their lifeline."""
        for job in [] if self._here else self._jobs:
            job.cancel(check=False)


@contextmanager
def workers(
    classroom: Classroom, lab: str, n: int, cluster: str | None, options: dict[str, str]
) -> Iterator[Here | Jobs]:
    """`n` at a time; those of `cluster`, or, where there is none, this process."""
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
    """A job: judge whatever nobody else does, until nothing waits. With a `lifeline`, end when nobody holds it.

    RuntimeError on a machine that can't box a submission, if whoever gives out the jobs can: `boxed`.
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
                time.sleep(_POLL_S)  # others have them all
    finally:
        close_referees()


def _end_with(lifeline: Path) -> None:
    while held(lifeline):
        time.sleep(_POLL_S)
    os._exit(1)  # what runs in a box ends with us


def _judge_next(classroom: Classroom, queue: Queue, student: str) -> bool:
    """True if this was ours to judge."""
    with queue.claim(student) as nb:
        if nb is None:
            return False
        try:
            with closing(Scratch()) as scratch:
                files = scratch.folder("files")
                classroom.copy_files(queue.lab, student, files)
                RefereeExecutor(config=classroom.config).judged(nb, files, queue.lab, student)
        except Exception as error:  # whatever it is, it is this submission's, and the next one waits
            queue.fail(student, f"{type(error).__name__}: {error}")
        return True
