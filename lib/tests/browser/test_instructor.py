"""An instructor with nbgrader's formgrader in a real browser: what was released, who handed in, autograde, feedback.

For `make hour`; pictures of it are in build/pictures.
"""

from pathlib import Path

import nbformat
import pytest

from grading.samples.sample import samples

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[3]
LAB = "lab2_ddp"


@pytest.fixture(scope="module")
def formgrader(server, course):
    """A page of it; ada has handed in a right answer, bob one that never divides."""
    for student, name in (("ada", "right"), ("bob", "forgets_to_average")):
        folder = course / "grading" / "submitted" / student / LAB
        folder.mkdir(parents=True)
        nbformat.write(next(s for s in samples(LAB) if s.name == name).notebook(), folder / f"{LAB}.ipynb")
    chromium, url = server
    page = chromium.new_page(viewport={"width": 1250, "height": 800})
    page.goto(url.replace("/lab?", "/formgrader?"))
    yield page
    page.close()


def pressed(page, row: str, column: str) -> str:
    """What formgrader says when its button in this row and column was pressed."""
    page.locator("tr", has_text=row).locator(f".{column} a").click()
    dialog = page.locator(".modal.in")
    dialog.get_by_text("Successfully").first.wait_for(timeout=300_000)
    said = dialog.inner_text()
    dialog.get_by_role("button", name="OK").click()
    dialog.wait_for(state="hidden")
    return said


def cell(page, row: str, column: str) -> str:
    return page.locator("tr", has_text=row).locator(f".{column}").inner_text().strip()


def test_all_labs_are_there_and_who_handed_in(formgrader):
    formgrader.locator("tr", has_text=LAB).wait_for(timeout=60_000)
    labs = [folder.name for folder in (ROOT / "labs").glob("lab*")]
    found = {lab: cell(formgrader, lab, "num-submissions") for lab in labs}
    assert found == dict.fromkeys(labs, "0") | {LAB: "2"}


def test_generate_makes_what_students_get(formgrader, course):
    pressed(formgrader, LAB, "assign")
    made, ours = (nbformat.read(root / "labs" / LAB / f"{LAB}.ipynb", as_version=4) for root in (course, ROOT))
    assert [c.source for c in made.cells] == [c.source for c in ours.cells]


def test_autograde_gives_the_points_that_are_due(formgrader, pictures):
    formgrader.locator("tr", has_text=LAB).locator(".num-submissions a").click()
    formgrader.locator("tr", has_text="ada").wait_for(timeout=60_000)
    assert "PASSED lab2.gradients" in pressed(formgrader, "ada", "autograde")
    assert "never divided by it" in pressed(formgrader, "bob", "autograde")
    formgrader.reload()
    formgrader.locator("tr", has_text="ada").wait_for(timeout=60_000)
    formgrader.screenshot(path=pictures / "instructor_graded.png")
    assert (cell(formgrader, "ada", "score"), cell(formgrader, "bob", "score")) == ("15 / 18", "9 / 18")  # 3 by hand


def test_feedback_shows_figures_and_pictures(formgrader, course, pictures):
    pressed(formgrader, "ada", "generate-feedback")
    formgrader.goto((course / "grading" / "feedback" / "ada" / LAB / f"{LAB}.html").as_uri())
    formgrader.screenshot(path=pictures / "feedback.png", full_page=True)
    assert formgrader.get_by_text("PASSED").count() == 6
    assert formgrader.get_by_role("img", name="yours beside the reference").count() == 2
