"""A student's first hour in a real browser: the first lesson, a lab, a check that fails and one that passes, Validate.

For `make hour`; pictures of it are in build/pictures.
"""

import re
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
import psutil
import pytest
from notebook_page import NotebookPage

from grading.samples.sample import samples

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]
LAB = "labs/lab2_ddp/lab2_ddp.ipynb"


def cells(name: str) -> dict[str, str]:
    """The sources of a sample of lab 2, by grade id."""
    sample = next(s for s in samples("lab2_ddp") if s.name == name)
    return {c.metadata.nbgrader.grade_id: c.source for c in sample.notebook().cells}


def test_the_first_lesson_opens_and_runs(server, pictures):
    page = NotebookPage(*server, "course/00_start_here.ipynb")
    page.run_all(within_s=300)
    assert page.failures() == []
    page.page.screenshot(path=pictures / "student_lesson.png")
    page.page.close()


def test_the_list_of_lessons_opens_as_a_page_and_nothing_asks_for_the_news(server, pictures):
    chromium, url = server
    page = chromium.new_page(viewport={"width": 1150, "height": 1000})
    page.goto(url.replace("/lab?", "/lab/tree/course/README.md?"))
    page.wait_for_selector(".jp-RenderedMarkdown table a >> text=Start here", timeout=60_000)
    page.wait_for_timeout(3000)
    assert not page.locator(".jp-toastContainer >> text=news").count()
    page.screenshot(path=pictures / "student_readme.png")
    page.close()


@pytest.fixture(scope="module")
def lab(server):
    page = NotebookPage(*server, LAB)
    for name in ("parameters", "imports", "train_step"):
        assert "Error" not in page.run_cell(name)
    yield page
    page.page.close()


def test_a_check_tells_what_is_missing_and_wrong_until_it_is_right(lab, pictures):
    lab.run_cell("token_ddp")
    said = lab.run_cell("lab2-gradients")
    assert "nothing is written yet in __init__, Cell In[" in said and "drills" not in said and "on_ranks" not in said
    lab.write("token_ddp", cells("forgets_to_average")["token_ddp"])
    lab.run_cell("token_ddp")
    assert "never divided by it" in lab.run_cell("lab2-gradients")
    lab.page.screenshot(path=pictures / "student_wrong.png")
    lab.write("token_ddp", cells("right")["token_ddp"])
    lab.run_cell("token_ddp")
    assert "PASSED" in lab.run_cell("lab2-gradients")
    lab.page.screenshot(path=pictures / "student_right.png")


def test_the_stop_button_ends_a_check_and_its_ranks_at_once(lab):
    ranks = own_processes()
    lab.begin_cell("lab2-throughput")
    lab.page.get_by_text(re.compile(r"judging lab2\.throughput: \d+ s")).wait_for()  # whoever waits sees how long
    wait_until(lambda: len(own_processes() - ranks) >= 4)
    pressed = time.monotonic()
    lab.page.get_by_role("button", name="Interrupt the kernel").first.click()
    assert (
        lab.end_of_cell("lab2-throughput").strip()
        == "KeyboardInterrupt: lab2.throughput was interrupted; nothing is lost"
    )
    assert time.monotonic() - pressed < 5
    assert own_processes() <= ranks
    assert not lab.page.get_by_text("judging lab2").count()
    assert "PASSED" in lab.run_cell("lab2-traffic"), "the kernel goes on"


def test_validate_names_the_check_that_is_left(lab, pictures):
    said = validated(lab, pictures / "student_validate_failed.png")
    assert "NotImplementedError" in said and "hand_in(" not in said, "the verdict, and no line of ours"


def test_validate_succeeds_on_a_solved_lab(lab, pictures):
    lab.write("plan_buckets", cells("right")["plan_buckets"])
    lab.write("lab2-argument", cells("right")["lab2-argument"])
    assert "passes all the tests" in validated(lab, pictures / "student_validated.png")


def test_what_was_saved_is_what_would_be_handed_in(lab, course):
    saved = {c.metadata.nbgrader.grade_id: c.source for c in nbformat.read(course / LAB, as_version=4).cells}
    assert saved["token_ddp"] == cells("right")["token_ddp"]


def own_processes() -> set[psutil.Process]:
    """Of this test: the server, its kernels, and what they have started."""
    return set(psutil.Process().children(recursive=True))


def wait_until(condition: Callable[[], bool], within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def validated(lab: NotebookPage, picture: Path) -> str:
    """What nbgrader's dialog says."""
    lab.command("docmanager:save")
    lab.page.get_by_role("button", name="Validate").first.click()
    dialog = lab.page.locator(".jp-Dialog")
    dialog.get_by_text("Validation Results").wait_for(timeout=300_000)
    said = dialog.inner_text()
    lab.page.screenshot(path=picture)
    dialog.get_by_role("button").last.click()
    return said
