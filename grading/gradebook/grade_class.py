"""Grade a class: put changed submissions into the queue, and record each in the gradebook when it is judged."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from grading.gradebook.error_advice import in_words, shown, with_advice
from grading.gradebook.inspect_files import Stamp, SubmissionError
from grading.gradebook.nbgrader_classroom import Classroom, Grade
from grading.gradebook.queue import Queue, Task, alone
from grading.gradebook.result_cache import Kept, made_of
from grading.gradebook.worker import workers
from grading.judge.find_lab import lab_module

DIED = "whoever judged it was ended: grade again, or see grading/queue/{lab}/log"
UNREADABLE = "it can't be read"
LONGEST_NAME = 200  # bytes of a folder's name: files in the queue have longer ones


@dataclass(frozen=True)
class Graded:
    """A student's outcome: `grade` as in the gradebook, or None and the `problem`.

    `why`: reason to judge it, or "". `new`: False if it is as it was when `grade_all` was called before.
    """

    student: str
    why: str
    grade: Grade | None = None
    problem: str = ""
    new: bool = True


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

    Raises SystemExit if another process is grading this course, CourseError if the gradebook is not ready.
    """
    lab_module(lab)  # a lab without checks is the instructor's mistake, not the student's
    if students:
        classroom.ready(lab)
    queue, waiting = Queue(classroom.queue, lab), {}
    with alone(classroom.lock):
        queue.tidy()
        for student in set(queue.students()) - set(students):
            queue.clear(student)  # left by a run that was killed
        for student in students:
            outcome = _enqueue(classroom, queue, student)
            if isinstance(outcome, Graded):
                yield outcome
            else:
                waiting[student] = outcome
        if not waiting:
            return
        who = queue, classroom.shelf, classroom.judging
        with workers(*who, at_a_time, cluster, options or {}, classroom.lock) as crowd:
            somebody_works = True
            while waiting:
                still, ended = set(queue.students()), not somebody_works
                for student in sorted(s for s in waiting if ended or s not in still):
                    yield _record(classroom, queue, student, *waiting.pop(student))
                somebody_works = bool(waiting) and crowd.go_on()


def _enqueue(classroom: Classroom, queue: Queue, student: str) -> Graded | tuple[str, Stamp]:
    """Queue a submission that must be judged. Return why it must be judged or recorded, and the stamp of what was
    taken; or the outcome if there is nothing to do, or nothing can be done.

    This is the only time that it is cleaned, copied and hashed for the judge: the worker judges what is in the queue.
    """
    lab = queue.lab
    try:
        if len(student.encode(errors="replace")) > LONGEST_NAME:
            raise SubmissionError("the name of the student's folder is too long: rename it")
        if not student.isprintable():
            raise SubmissionError("the name of the student's folder cannot be shown: rename it")
        with queue.draft() as draft:
            submission, stamp = classroom.take(lab, student, draft / "files")
            now = made_of(submission, classroom.judging)
            if why := _why(classroom.shelf.get(lab, student), now, classroom.again):
                queue.put(student, Task(submission, now), anew=classroom.again)
                return why, stamp
        queue.clear(student)
        if classroom.shelf.in_gradebook(lab, student) and classroom.is_graded(lab, student):
            changed = classroom.shelf.note_problem(lab, student, "")
            return Graded(student, "", classroom.grade(lab, student), new=changed)
        return "its points are not in the gradebook", stamp
    except Exception as error:  # a failure for one student must not stop the others
        with suppress(Exception):
            queue.clear(student)
        return _no_grade(classroom, queue.lab, student, UNREADABLE, _failure(lab, student, error))


def _why(kept: Kept | None, now: dict[str, str], again: bool) -> str:
    """Return the reason to judge a submission; "" if there is none."""
    if kept is None:
        return "it is new"
    if changed := [part for part in now if kept.made_of.get(part) != now[part]]:
        return f"the {' and the '.join(changed)} changed"
    if kept.judged.unclear:
        return "the machine was too noisy"
    return "that was asked for" if again else ""


def _record(classroom: Classroom, queue: Queue, student: str, why: str, stamp: Stamp) -> Graded:
    try:
        if problem := queue.problem(student):
            return _no_grade(classroom, queue.lab, student, why, with_advice(problem))
        if student in queue.students():
            return _no_grade(classroom, queue.lab, student, why, DIED.format(lab=queue.lab))
        grade = classroom.record(queue.lab, student, stamp)
        classroom.shelf.note_problem(queue.lab, student, "")
        return Graded(student, why, grade)
    except RuntimeError as error:  # its message is complete
        return _no_grade(classroom, queue.lab, student, why, str(error))
    except Exception as error:  # a failure for one student must not stop the others
        return _no_grade(classroom, queue.lab, student, why, _failure(queue.lab, student, error))


def _failure(lab: str, student: str, error: Exception) -> str:
    return f"could not grade {shown(student)}'s {lab}: {in_words(error)}"


def _no_grade(classroom: Classroom, lab: str, student: str, why: str, problem: str) -> Graded:
    """Return the outcome, and add the student to the gradebook, as nbgrader does: tables then have a row."""
    with suppress(Exception):
        classroom.enroll(student)
    return Graded(student, why, problem=problem, new=classroom.shelf.note_problem(lab, student, problem))
