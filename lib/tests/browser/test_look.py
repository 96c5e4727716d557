"""Every figure and widget in a real JupyterLab in a real browser, light and dark: does it show, does it answer?

For `make look`. The pictures of what was seen are in build/pictures, to be looked at.
"""

import base64
import io
import re
import time
from pathlib import Path

import nbformat
import numpy as np
import pytest
from gallery import WIDGETS, notebook
from lab import jupyterlab
from notebook_page import NotebookPage
from PIL import Image

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
TESTS = Path(__file__).resolve().parents[1]
PICTURES = TESTS.parents[1] / "build" / "pictures"
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}


@pytest.fixture(scope="module")
def lab(chromium, tmp_path_factory):
    """A page on the notebook with all figures and widgets, all cells run; and the server around it."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    home = tmp_path_factory.mktemp("lab")
    (home / "notebooks").mkdir()
    nbformat.write(notebook(figures=True, tests=str(TESTS)), home / "notebooks" / "gallery.ipynb")
    with jupyterlab(home) as url:
        page = NotebookPage(chromium, url, "gallery.ipynb")
        page.run_all(within_s=400)
        yield page


def test_no_cell_failed_or_complained(lab):
    for cell in lab.code_cells():
        for output in cell["outputs"]:
            assert output["output_type"] in ("display_data", "execute_result"), output


def test_nothing_failed_in_the_page(lab):
    assert lab.errors == []


@pytest.mark.parametrize("theme", THEMES)
def test_every_picture_is_drawn(lab, theme):
    """It has pixels that stand out from the page: thin lines and small text, at the least."""
    lab.theme(THEMES[theme])
    assert len(lab.pictures()) >= 6 + len(WIDGETS)
    for i, picture in enumerate(lab.pictures()):
        shot = picture.screenshot(path=PICTURES / f"{theme}_{i:02d}.png")
        pixels = np.asarray(Image.open(io.BytesIO(shot)).convert("L"), dtype=int)
        page = np.bincount(pixels.ravel()).argmax()
        assert (page > 128) == (theme == "light")
        assert (abs(pixels - page) > 60).mean() > 0.004


@pytest.mark.parametrize("title", WIDGETS)
@pytest.mark.parametrize("theme", THEMES)
def test_widgets_are_widgets(lab, title, theme):
    lab.theme(THEMES[theme])
    output = lab.output_below(title)
    assert output.locator(".widget-slider").count() >= 1
    assert output.get_by_role("status").count() == 1, "its words"
    assert not re.search(r"(Planner|BucketSlider|ShardingExplorer)\(", output.inner_text()), "a repr"
    output.screenshot(path=PICTURES / f"{theme}_{title.replace(' ', '_')}.png")


def test_every_control_is_labelled_or_has_a_labelled_twin(lab):
    for title in WIDGETS:
        output = lab.output_below(title)
        lists, buttons = output.get_by_role("combobox"), output.get_by_role("button")
        for control in [*lists.all(), *buttons.all()]:
            assert lab.accessible_name(control), title
        assert output.get_by_role("slider").count() < lists.count() + 1
        assert not output.locator("input").count(), "nothing that this test does not know of"


def test_the_planner_answers(lab):
    widget = lab.widget("planner")
    assert "FULL_SHARD, 8B on 8 GPUs" in widget.words()
    widget.choose("sharding", "DDP")
    widget.wait_for_words("DDP, 8B on 8 GPUs: does not fit")
    assert widget.picture_changed()
    for view in ("memory of each sharding", "time of a step", "memory over a step"):
        widget.choose("View", view)
        assert widget.picture_changed(), view
    widget.choose("Model", "70B")
    widget.wait_for_words("70B on 8 GPUs: does not fit")
    assert widget.picture_changed()


def test_choices_that_do_not_go_together_are_told(lab):
    widget = lab.widget("planner")
    widget.choose("pipeline", "16")
    widget.wait_for_words("pipeline", role="alert")
    widget.choose("pipeline", "1")
    widget.wait_for_words("70B on 8 GPUs")


def test_sliders_are_worked_by_keyboard(lab):
    widget = lab.widget("planner")
    widget.press("ArrowRight")
    widget.wait_for_words("on 16 GPUs")
    widget.press("ArrowLeft")
    widget.wait_for_words("on 8 GPUs")


def test_the_bucket_slider_trains_and_adds_a_point(lab):
    widget = lab.widget("bucket slider")
    assert "of 1 measured" in widget.words()
    widget.drag_slider_to(0.5)
    released_s = time.monotonic()
    widget.wait_for_words("of 2 measured", within_s=60)
    assert widget.picture_changed()
    print(f"\nfrom the slider's release to the point: {time.monotonic() - released_s:.2f} s")
    widget.press("ArrowLeft")
    widget.wait_for_words("of 3 measured", within_s=60)
    assert widget.picture_changed()


def test_a_widget_that_fails_says_so_and_goes_on(lab):
    lab.execute("good, buckets._measure = buckets._measure, lambda cap_mb: 1 / 0")
    widget = lab.widget("bucket slider")
    widget.output.get_by_role("button", name="Measure again").click()
    widget.wait_for_words("ZeroDivisionError", role="alert")
    lab.execute("buckets._measure = good")
    widget.output.get_by_role("button", name="Measure again").click()
    widget.wait_for_words("of 3 measured", within_s=60)


def test_the_sharding_explorer_goes_through_a_step(lab):
    widget = lab.widget("sharding explorer")
    assert "forward of blocks.1" in widget.words()
    widget.press("ArrowRight")
    widget.wait_for_words("forward of blocks.2")
    assert widget.picture_changed()
    widget.choose("Strategy", "ZERO_2")
    widget.wait_for_words("ZERO_2: forward of blocks.2")
    assert widget.picture_changed()


def test_pictures_after_all_that(lab):
    for theme, name in THEMES.items():
        lab.theme(name)
        for title in WIDGETS:
            lab.output_below(title).screenshot(path=PICTURES / f"{theme}_{title.replace(' ', '_')}_moved.png")


def test_without_a_kernel_the_last_picture_is_still_there(lab):
    """Saved, shut down and opened again: each widget's figure, as it was last, is part of the notebook."""
    shown = [base64.b64decode(picture.get_attribute("src").partition(",")[2]) for picture in lab.pictures()]
    lab.save_and_reopen_without_kernel()
    again = [base64.b64decode(picture.get_attribute("src").partition(",")[2]) for picture in lab.pictures()]
    assert again == shown
    lab.output_below("sharding explorer").screenshot(path=PICTURES / "without_kernel.png")
