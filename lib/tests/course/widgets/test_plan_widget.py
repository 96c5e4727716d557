"""The planner as a widget shows what the planner says; and a notebook keeps the last picture."""

import base64

import nbclient
import nbconvert
import nbformat
import pytest
from deadlines import deadline_s

from shardcourse.widgets import Planner
from shardcourse.widgets.planner import CONTROLS, OVER_A_STEP, SHARDINGS, TIME
from shardplan.api import plan


@pytest.fixture(scope="module")
def planner() -> Planner:
    return Planner("8B", "dgx-h100", 8)


def test_it_shows_what_plan_says(planner):
    assert planner.plan == plan("8B", "dgx-h100", 8)
    planner.strategy["sharding"].value = "DDP"
    planner.gpus.value = 16
    same = plan("8B", "dgx-h100", 16, sharding="DDP")
    assert planner.plan == same
    assert "DDP, 8B on 16 GPUs: does not fit" in planner.message and same.advice[0] in planner.message
    planner.gpus.value, planner.strategy["sharding"].value = 8, "FULL_SHARD"


def test_every_control_changes_the_setup(planner):
    before = planner.plan.setup
    for name in CONTROLS:
        control = planner.strategy[name]
        goes_with_the_rest = [v for v in control.options if v not in (control.value, "NONE")]
        control.value, was = goes_with_the_rest[0], control.value
        assert getattr(planner.plan.setup.strategy, name) == control.value, planner.message
        control.value = was
    assert planner.plan.setup == before


def test_the_peak_stands_in_the_picture_and_in_the_words(planner):
    peak = planner.plan.memory.peak
    written = [t.get_text() for t in planner.figure.axes[0].texts]
    assert f"peak: {peak.name}" in written and planner.plan.setup.machine.gpu.name in written
    assert peak.name in planner.message


@pytest.mark.parametrize("view", [SHARDINGS, TIME])
def test_other_views_compare_what_goes_together(planner, view):
    planner.view.value = view
    names = [t.get_text() for t in planner.figure.axes[0].get_yticklabels()]
    assert {"DDP", "FULL_SHARD, chosen"} <= set(names)
    planner.view.value = OVER_A_STEP


def test_choices_that_do_not_go_together_are_told_and_take_nothing_away(planner):
    figure, before = planner.figure, planner.plan
    planner.strategy["pipeline"].value = 16
    assert 'role="alert"' in planner._words.value and "pipeline" in planner.message
    assert planner.figure is figure and planner.plan == before
    planner.strategy["pipeline"].value = 1
    assert 'role="status"' in planner._words.value


def test_fields_without_a_control_stay_as_they_were_given():
    planner = Planner("1B", "dgx-a100", 4, accumulation=3, micro_batch=3)
    assert planner.strategy["micro_batch"].value == 3, "a value of its own is added to the list"
    planner.strategy["recompute"].value = "full"
    assert planner.plan.setup.strategy.accumulation == 3


def test_it_begins_with_choices_that_go_together():
    with pytest.raises(ValueError, match="FULL_SHARD"):
        Planner("8B", sharding="FULL_SHRD")


@pytest.mark.night
def test_a_notebook_keeps_the_last_picture_and_its_words():
    """Executed, and converted to HTML with the widgets' state and without."""
    show, change = "from shardcourse.widgets import Planner\np = Planner('1M')\np", "p.gpus.value = 2"
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in (show, change)])
    nbclient.NotebookClient(nb, kernel_name="python3", timeout=int(deadline_s(60))).execute()
    controls, picture = nb.cells[0].outputs
    assert set(controls.data) == {"text/plain", "application/vnd.jupyter.widget-view+json"}
    assert base64.b64decode(picture.data["image/png"]).startswith(b"\x89PNG")
    assert picture.data["text/plain"].startswith("Planner. FULL_SHARD, 1M on 2 GPUs")
    for _ in ("with the widgets' state", "without"):
        page, _ = nbconvert.HTMLExporter().from_notebook_node(nb)
        assert picture.data["image/png"] in page
        nb.metadata.pop("widgets", None)
