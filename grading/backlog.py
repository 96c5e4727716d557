"""A class from its submissions to the gradebook: what changed goes into the queue, and out of it as it is judged."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from grading.classroom import Classroom, Grade
from grading.executor import RefereeExecutor
from grading.queue import Queue, alone
from grading.sandbox.scratch import Scratch
from grading.worker import workers

DIED = "whoever judged it was ended: grade again, or see grading/queue/{lab}/log"


@dataclass(frozen=True)
class Graded:
    """`grade` as the gradebook has it now, or None and the `problem`. `why` it was judged; "" if there was no need."""

    student: str
    why: str
    grade: Grade | None = None
    problem: str = ""


def grade_all(
    classroom: Classroom,
    lab: str,
    students: list[str],
    *,
    at_a_time: int = 1,
    cluster: str | None = None,
    options: dict[str, str] | None = None,
) -> Iterator[Graded]:
    """Each student's outcome, as it comes. Whenever this is killed, another call goes on where it was.

    SystemExit if somebody else is grading this course.
    """
    queue = Queue(classroom.queue, lab)
    with alone(classroom.lock):
        for student in queue.students():
            queue.clear(student)  # of a run that was killed
        waiting = {}
        for student in students:
            why = _enqueue(classroom, queue, student)
            if why:
                waiting[student] = why
            else:
                yield Graded(student, "", classroom.grade(lab, student))
        with workers(classroom, lab, at_a_time, cluster, options or {}) as crowd:
            somebody_works = True
            while waiting:
                still, ended = set(queue.students()), not somebody_works
                for student in sorted(s for s in waiting if ended or s not in still):
                    yield _record(classroom, queue, student, waiting.pop(student))
                somebody_works = bool(waiting) and crowd.go_on()


def _enqueue(classroom: Classroom, queue: Queue, student: str) -> str:
    """Why it must be judged, or its points be written down; "" if nothing is to do."""
    lab, executor = queue.lab, RefereeExecutor(config=classroom.config)
    queue.clear(student)
    try:
        nb = classroom.sanitized(lab, student)
        with closing(Scratch()) as scratch:
            files = scratch.folder("files")
            classroom.copy_files(lab, student, files)
            now = executor.made_of(nb, files, lab)
    except Exception:  # nbgrader will meet it again, and `record` finds the words
        return "it can't be read"
    judged, why = classroom.shelf.get(lab, student), ""
    if judged is None or judged.made_of != now:
        before = judged.made_of if judged else {}
        why = (
            "it is new"
            if judged is None
            else f"the {' and the '.join(k for k in now if before.get(k) != now[k])} changed"
        )
    elif judged.unclear:
        why = "the machine was too noisy"
    elif executor.again:
        why = "that was asked for"
    if why:
        queue.put(student, nb)
        return why
    if classroom.shelf.in_gradebook(lab, student) and classroom.is_graded(lab, student):
        return ""
    return "its points are not in the gradebook"


def _record(classroom: Classroom, queue: Queue, student: str, why: str) -> Graded:
    problem = queue.problem(student) or (DIED.format(lab=queue.lab) if student in queue.students() else "")
    if problem:
        return Graded(student, why, problem=problem)
    try:
        return Graded(student, why, classroom.record(queue.lab, student))
    except RuntimeError as error:
        return Graded(student, why, problem=str(error))
