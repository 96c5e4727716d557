"""A course that belongs to somebody else: an ordinary user opens it, who can't write there, and nothing is on the web.

For `make hour`. The box shows the course read-only, and the user as one who is not root.
"""

import nbformat
import pytest
from lab import jupyterlab
from notebook_page import NotebookPage

from grading.boxes.sandbox import Bubblewrap

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(Bubblewrap.obstacle()), reason=f"needs a real box: {Bubblewrap.obstacle()}"),
]
LESSON = "course/00_start_here.ipynb"
WORK = "shardlab-notebooks"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("guest")


@pytest.fixture(scope="module")
def lesson(chromium, course, home):
    somebody = ["--unshare-user", "--uid", "1000", "--gid", "1000", "--setenv", "HOME", home]
    box = ["bwrap", "--die-with-parent", "--dev-bind", "/", "/", "--ro-bind", course, course, *somebody]
    with jupyterlab(home, course, inside=box) as url:
        page = NotebookPage(chromium, url, LESSON)
        yield page
        page.page.close()


def test_a_lesson_runs(lesson, pictures):
    lesson.run_all(within_s=300)
    assert lesson.failures() == []
    lesson.page.screenshot(path=pictures / "guest_lesson.png")


@pytest.mark.timeout(120)  # what cannot be saved asks what to do, and waits
def test_what_they_write_is_saved_in_a_copy_of_their_own(lesson, course, home):
    before = (course / LESSON).read_bytes()
    lesson.command("docmanager:save")
    lesson.page.wait_for_function("() => !jupyterapp.shell.currentWidget.context.model.dirty")
    saved = nbformat.read(home / WORK / LESSON, as_version=4)
    assert any(cell.outputs for cell in saved.cells if cell.cell_type == "code")
    assert (course / LESSON).read_bytes() == before


def test_nothing_is_asked_of_the_web(lesson):
    assert lesson.asked <= {"localhost", "127.0.0.1", ""}
