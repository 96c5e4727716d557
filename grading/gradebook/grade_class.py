"""Grade a class: put changed submissions into the queue, and record each in the gradebook when it is judged."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from grading.boxes.sandbox.scratch import Scratch
from grading.gradebook.nbgrader_api import Classroom, Grade, with_advice
from grading.gradebook.nbgrader_executor import RefereeExecutor
from grading.gradebook.queue import Queue, alone
from grading.gradebook.result_cache import Judged
from grading.gradebook.worker import workers

DIED = "whoever judged it was ended: grade again, or see grading/queue/{lab}/log"


@dataclass(frozen=True)
class Graded:
    """A student's outcome: `grade` as in the gradebook, or None and the `problem`. `why`: reason to judge it, or ""."""

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
    """Yield each student's outcome as soon as it is known. If this is killed, another call continues where it stopped.

    Raises SystemExit if another process is grading this course.
    """
    queue = Queue(classroom.queue, lab)
    with alone(classroom.lock):
        for student in set(queue.students()) - set(students):
            queue.clear(student)  # left by a run that was killed
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
    """Queue a submission that must be judged. Return why it must be judged or recorded; "" if nothing is to do."""
    lab, executor = queue.lab, RefereeExecutor(config=classroom.config)
    try:
        nb = classroom.sanitized(lab, student)
        with closing(Scratch()) as scratch:
            files = scratch.folder("files")
            classroom.copy_files(lab, student, files)
            now = executor.made_of(nb, files, lab)
        if why := _why(classroom.shelf.get(lab, student), now, executor.again):
            queue.put(student, nb, anew=executor.again)
            return why
    except Exception:  # nbgrader will meet the same error, and `record` will report it
        queue.clear(student)
        return "it can't be read"
    queue.clear(student)
    if classroom.shelf.in_gradebook(lab, student) and classroom.is_graded(lab, student):
        return ""
    return "its points are not in the gradebook"


def _why(judged: Judged | None, now: dict[str, str], again: bool) -> str:
    """Return the reason to judge a submission; "" if there is none."""
    if judged is None:
        return "it is new"
    if changed := [part for part in now if judged.made_of.get(part) != now[part]]:
        return f"the {' and the '.join(changed)} changed"
    if judged.unclear:
        return "the machine was too noisy"
    return "that was asked for" if again else ""


def _record(classroom: Classroom, queue: Queue, student: str, why: str) -> Graded:
    if problem := queue.problem(student):
        return Graded(student, why, problem=with_advice(problem))
    if student in queue.students():
        return Graded(student, why, problem=DIED.format(lab=queue.lab))
    try:
        return Graded(student, why, classroom.record(queue.lab, student))
    except RuntimeError as error:
        return Graded(student, why, problem=str(error))
