"""Live ranks in a real JupyterLab: the interrupt button, output at 800 pixels, `who` before and after `unshard`.

For `make look`. The pictures of what was seen are in build/pictures, to be looked at.
"""

import time

import nbformat
import pytest
from deadlines import deadline_s
from lab import jupyterlab
from nbformat.v4 import new_code_cell, new_notebook
from notebook_page import NotebookPage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
CELLS = {
    "start": "%load_ext shardlab\n%ranks start 4 --device cpu",
    "pending": "%%ranks 0\nx = torch.ones(2)\ndist.all_reduce(x)",
    "computing": "%%ranks 1\nimport time\nprint('begun', flush=True)\nwhile True: time.sleep(0.1)",
    "waits": "%ranks",
    "rest": "%%ranks 1-3\nx = torch.ones(2)\ndist.all_reduce(x)",
    "output": "%%ranks\nfor step in range(3): print('step', step, 'loss', 0.5**step)\n"
    "torch.arange(40.0) * (rank if rank < 2 else 1), 'a long text of the last line ' * 8",
    "error": "%%ranks\ny = torch.ones(3)\nif rank == 2:\n    y @ torch.ones(4)",
    "model": "%%ranks\nfrom torch.distributed.fsdp import fully_shard\n"
    "m = torch.nn.Sequential(torch.nn.Linear(8, 10))\nfully_shard(m[0]);",
    "who sharded": 'from shardcourse.who import who\nwho("m.0.weight")',
    "unshard": "%%ranks --wire --memory\nm[0].unshard()",
    "who whole": 'who("m.0.weight")',
    "stop": "%ranks stop",
}


@pytest.fixture(scope="module")
def lab(chromium, tmp_path_factory):
    """A page on the notebook, 800 pixels wide, whose ranks have started."""
    home = tmp_path_factory.mktemp("lab")
    (home / "notebooks").mkdir()
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nb = new_notebook(metadata=kernel, cells=[new_code_cell(source) for source in CELLS.values()])
    for name, cell in zip(CELLS, nb.cells, strict=True):
        cell.metadata["nbgrader"] = {"grade_id": name}  # by which the page finds it
    nbformat.write(nb, home / "notebooks" / "live.ipynb")
    with jupyterlab(home) as url:
        page = NotebookPage(chromium, url, "live.ipynb")
        page.page.set_viewport_size({"width": 800, "height": 1000})
        page.command("application:toggle-left-area")
        assert page.run_cell("start") == "4 ranks are there\n"
        yield page


def interrupt(lab) -> None:
    lab.page.get_by_role("button", name="Interrupt the kernel").first.click()


def press_interrupt(lab, cell: str) -> tuple[str, float]:
    """Press the button; return what the cell has put out when it is back, and after how many seconds."""
    pressed = time.monotonic()
    interrupt(lab)
    text = lab.end_of_cell(cell)
    return text, time.monotonic() - pressed


def test_a_pending_call_gives_the_notebook_back_by_itself_and_an_interrupt_leaves_it(lab):
    began = time.monotonic()
    assert "rank 0 waits in all_reduce Float[2]" in lab.run_cell("pending")
    assert time.monotonic() - began < deadline_s(3)
    interrupt(lab)  # nothing runs: nothing happens
    assert "rank 0 waits in all_reduce Float[2]" in lab.run_cell("waits")


def test_the_interrupt_button_ends_what_computes_and_leaves_what_waits(lab):
    lab.begin_cell("computing")
    lab.page.get_by_text("[rank 1] begun").wait_for()
    text, seconds = press_interrupt(lab, "computing")
    assert text.endswith("KeyboardInterrupt: interrupted: rank 1") and "rank 0 waits in all_reduce Float[2]" in text
    assert seconds < deadline_s(2)
    assert lab.run_cell("rest") == ""
    assert lab.run_cell("waits") == "no rank waits\n"


def test_output_fits_into_800_pixels(lab, pictures):
    assert lab.run_cell("output").startswith("[every rank] step 0 loss 1.0\n")
    assert "[rank 2] RuntimeError" in lab.run_cell("error")
    for name in ("pending", "computing", "output", "error"):
        output = lab.page.locator(".jp-CodeCell").nth(list(CELLS).index(name)).locator(".jp-Cell-outputArea")
        output.screenshot(path=pictures / f"live_{name}.png")
        assert output.evaluate("e => e.scrollWidth <= e.clientWidth"), name
        assert all(e.evaluate("e => e.scrollWidth <= e.clientWidth") for e in output.locator("pre").all()), name


def test_who_shows_a_weight_sharded_and_whole(lab, pictures):
    lab.run_cell("model")
    shown = []
    for name in ("who sharded", "unshard", "who whole"):
        text = lab.run_cell(name)
        assert ("sent 1 all_gather" in text) == (name == "unshard") and "Error" not in text
        output = lab.page.locator(".jp-CodeCell").nth(list(CELLS).index(name)).locator(".jp-Cell-outputArea")
        shown.append(output.screenshot(path=pictures / f"live_{name.replace(' ', '_')}.png"))
        assert output.locator("img").count() == ("who" in name)
    assert shown[0] != shown[2]


def test_nothing_failed_in_the_page_and_stop_ends_the_ranks(lab):
    assert lab.run_cell("stop") == ""
    assert lab.errors == []
