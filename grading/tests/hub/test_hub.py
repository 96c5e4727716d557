"""The chapter of grading/README.md on JupyterHub, on a real hub with real users: a lab goes out, two students work, are
graded, and read their pages; and nobody reads what is another's.

For `make hub`, as root; pictures of it are in build/pictures. The tests follow each other.
"""

import pwd

import pytest
from class_on_a_hub import LAB, obstacle
from deadlines import deadline_s

from grading.samples.sample import samples

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(obstacle()), reason=f"needs a hub: {obstacle()}"),
]
WRONG = "sums_over_ranks"


def cells(name: str) -> dict[str, str]:
    """What a student writes: the sources of a sample, by grade id."""
    sample = next(s for s in samples(LAB) if s.name == name)
    return {c.metadata.nbgrader.grade_id: c.source for c in sample.notebook().cells if c.metadata.nbgrader.solution}


@pytest.fixture
def instructor(people):
    """instructor(program, ...): what a command of the instructor says; nbgrader's own run in grading/."""

    def run(program: str, *arguments: str) -> str:
        folder = people.course / "grading" if program == "nbgrader" else people.course
        return people.run(people.instructor, program, *arguments, cwd=folder)

    return run


def test_a_lab_is_released(instructor, people):
    instructor("shardlab", "release", LAB)
    instructor("nbgrader", "release_assignment", LAB)
    assert (people.exchange / "shardlab" / "outbound" / LAB / f"{LAB}.ipynb").is_file()


def test_a_student_fetches_works_validates_and_hands_in(people, log_in, picture):
    ada = log_in(people.students[0])
    ada.fetch()
    lab = ada.write(cells("right"))
    lab.page.get_by_role("button", name="Validate").first.click()
    dialog = lab.page.locator(".jp-Dialog")
    dialog.wait_for(timeout=deadline_s(300) * 1000)
    lab.page.screenshot(path=picture("validated"))
    assert "passes all the tests" in dialog.inner_text()
    lab.page.close()
    ada.submit(picture("handed-in"))


def test_another_hands_in_a_wrong_answer(people, log_in, picture):
    bob = log_in(people.students[1])
    bob.fetch()
    bob.write(cells(WRONG)).page.close()
    bob.submit(picture("handed-in-too"))


def test_the_instructor_collects_and_grades(instructor, people):
    instructor("nbgrader", "collect", LAB)
    assert sorted(p.name for p in (people.course / "grading" / "submitted").iterdir()) == sorted(people.students)
    said = instructor("shardlab", "grade", LAB)
    assert "bubblewrap" in said
    right, wrong = (instructor("shardlab", "grade", LAB, "--explain", student) for student in people.students)
    sample = next(s for s in samples(LAB) if s.name == WRONG)
    assert "18 of 18 points" in right
    assert sample.cause in wrong


def test_formgrader_shows_the_class_on_the_hub(people, log_in, picture):
    page = log_in(people.instructor).new_page()
    page.goto(f"{log_in(people.instructor).url}/formgrader")
    row = page.locator("tr", has_text=LAB)
    row.wait_for()
    assert row.locator(".num-submissions").inner_text().strip() == "2"
    page.screenshot(path=picture("formgrader"))
    row.locator(".num-submissions a").click()
    ada, bob = (page.locator("tr", has_text=student) for student in people.students)
    ada.wait_for()
    page.screenshot(path=picture("submissions"))
    assert ada.locator(".score").inner_text().strip() == "18 / 21"  # 3 by hand
    assert bob.locator(".score").inner_text().strip() == "12 / 21"
    page.close()


def test_feedback_reaches_its_reader(instructor, people, log_in, picture):
    instructor("shardlab", "feedback", LAB)
    instructor("nbgrader", "release_feedback", LAB)
    for student, n_passed in zip(people.students, (7, 5), strict=True):
        reader = log_in(student)
        folder = reader.fetch_feedback()
        page = reader.new_page()
        page.goto(f"{reader.url}/files/{folder}/{LAB}.html")
        page.screenshot(path=picture(f"feedback-{n_passed}"))
        assert page.get_by_text("PASSED").count() == n_passed
        page.close()


def reads(*paths) -> dict[str, str]:
    """Return lines that read these files and list these folders, all of which exist."""
    assert all(path.exists() for path in paths)
    return {
        str(path): f"os.{'listdir' if path.is_dir() else 'open'}({str(path)!r}{', 0' * path.is_file()})"
        for path in paths
    }


@pytest.fixture(scope="module")
def bob(people, log_in):
    """attempt(lines): what becomes of what this student tries in a kernel of the hub."""
    student = log_in(people.students[1])
    notebook = student.notebook()
    yield lambda lines: student.attempt(notebook, lines)
    notebook.page.close()


def test_a_student_reads_nothing_that_is_anothers(bob, people):
    ada, course, exchange = people.students[0], people.course, people.exchange / "shardlab"
    private = course / "grading" / "gradebook.db"
    others = [people.home(ada) / LAB / f"{LAB}.ipynb", course / "grading" / "submitted" / ada / LAB / f"{LAB}.ipynb"]
    ours = [course / "solutions" / LAB / f"{LAB}.ipynb", course / "grading" / "nbgrader_config.py", private]
    lines = reads(*others, *ours, exchange / "inbound", exchange / "feedback")
    lines["the gradebook, as a database"] = (
        f"sqlite3.connect('file:{private}?mode=ro', uri=True).execute('select 1 from grade')"
    )
    lines["the environment of the instructor's server"] = reads_environment(people.instructor, people)
    lines["the environment of another's server"] = reads_environment(ada, people)
    ended = bob(lines)
    assert set(ended.values()) <= {"PermissionError", "OperationalError"}, ended
    own = reads(people.home(people.students[1]) / LAB / f"{LAB}.ipynb", exchange / "outbound" / LAB / f"{LAB}.ipynb")
    assert set(bob(own).values()) == {"done"}


def reads_environment(user: str, people) -> str:
    process = next(p for p in people.processes() if p.info["username"] == user)
    return f"open('/proc/{process.pid}/environ', 'rb').read(1)"


def test_what_grading_made_is_closed_also_where_the_course_is_open(bob, people):
    """Where the instructor forgot `chmod 700`."""
    grading, ada = people.course / "grading", people.students[0]
    made = ("submitted", "autograded", "feedback", "judged")
    lines = reads(grading / "gradebook.db", *(grading / name for name in made))
    lines |= reads(grading / "submitted" / ada / LAB / "submission_secret.txt")
    people.course.chmod(0o755)
    try:
        ended = bob(lines)
    finally:
        people.course.chmod(0o700)
    assert set(ended.values()) == {"PermissionError"}, ended


def test_a_student_changes_nothing_in_the_exchange_but_hands_in(bob, people):
    exchange = people.exchange / "shardlab"
    released = exchange / "outbound" / LAB / f"{LAB}.ipynb"
    (handed_in,) = (exchange / "inbound").glob(f"{people.students[0]}+*")
    lines = {
        "put another course in the place of this one": f"os.rename({str(exchange)!r}, {str(exchange) + '-old'!r})",
        "change what is released": f"open({str(released)!r}, 'a')",
        "release more": f"os.mkdir({str(exchange / 'outbound' / 'lab0')!r})",
        "find what another handed in": f"next(Path({str(handed_in.parent)!r}).iterdir())",
    }
    assert set(bob(lines).values()) == {"PermissionError"}


def test_a_students_environment_has_no_answer(bob):
    """It is the kit's wheel, whose records stand in for our answers."""
    lines = {name: f"import grading.{name}" for name in ("references", "gradebook", "samples")}
    assert set(bob(lines).values()) == {"ModuleNotFoundError"}
    assert set(bob({"check": "from grading import check"}).values()) == {"done"}


def test_nobody_enters_anothers_server(people, log_in):
    for student, other in ((0, people.instructor), (1, people.students[0])):
        asked = log_in(people.students[student]).context.request.get(f"{people.url}/user/{other}/api/contents")
        assert asked.status == 403, other


def test_the_end_of_the_hub_leaves_no_process_and_no_user(people):
    before = people.processes()
    assert {p.username() for p in before} == set(people.users)
    people.end()
    assert people.left == []
    for user in people.users:
        with pytest.raises(KeyError):
            pwd.getpwnam(user)
