"""Live ranks in a submission: they run inside the box's limits, end with the notebook, and cost no answer."""

from contextlib import closing

import psutil
import pytest
from deadlines import deadline_s
from nbformat.v4 import new_code_cell, new_notebook

from grading.boxes.notebook_runner_client import NotebookRun, NotebookRunner
from grading.boxes.sandbox import Limits, Processes, best_box

START = "%load_ext shardlab\n%ranks start 2 --device cpu"
PENDING = "%%ranks 0\nx = torch.ones(2)\ndist.all_reduce(x)"
HANDS_IN = "import os, pathlib; (pathlib.Path(os.environ['SHARDLAB_ANSWERS']) / 'a').write_bytes(b'1')"


def run(box, *sources: str) -> tuple[NotebookRun, list[str]]:
    """What the run of these cells gave, and the text of each. Afterwards no process of it is left."""
    nb = new_notebook(cells=[new_code_cell(source) for source in sources])
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    cell_s, all_s = round(deadline_s(60)), round(deadline_s(120))
    with closing(NotebookRunner(box)) as runner:
        ran = runner.run(nb, None, parameters={}, cell_timeout_s=cell_s, timeout_s=all_s)
    after = psutil.Process().children(recursive=True)
    assert [p for p in after if p.pid not in before and p.status() != psutil.STATUS_ZOMBIE] == []
    return ran, ["".join(o.get("text", "") or o.get("evalue", "") for o in cell.outputs) for cell in ran.cells]


FREES = "%%ranks 1\nx = torch.ones(2)\ndist.all_reduce(x)\nx.sum().item()"


@pytest.mark.parametrize(
    ("box", "end"),
    [
        (best_box(), "%ranks stop"),
        pytest.param(best_box(), FREES, marks=pytest.mark.night),
        pytest.param(Processes(None), "%ranks stop", marks=pytest.mark.night),
    ],
    ids=["box, stops", "box, frees", "processes, stops"],
)
def test_live_cells_cost_no_answer_and_no_rank_is_left(box, end):
    """Whoever stops while something is pending gets an error in that cell alone; whoever forgets to stop gets none."""
    ran, (started, pending, ended, *_) = run(box, START, PENDING, end, HANDS_IN)
    assert (ran.answers, ran.problem, ran.killed) == ({"a": b"1"}, "", False)
    assert started == "2 ranks are there\n"
    assert "rank 0 waits in all_reduce Float[2], line 3: dist.all_reduce(x), for rank 1. Pending" in pending
    assert ("rank 0 waits in all_reduce" if "stop" in end else "[rank 1] 4.0") in ended


@pytest.mark.night
def test_a_notebook_that_ends_with_a_pending_call_and_no_stop_has_handed_in_what_it_has():
    ran, texts = run(best_box(), HANDS_IN, START, PENDING)
    assert (ran.answers, ran.problem, ran.killed) == ({"a": b"1"}, "", False)
    assert "Pending" in texts[-1], (texts, ran.cells)


@pytest.mark.night
def test_what_ranks_hold_counts_against_the_limit_of_the_box():
    limits = Limits(memory_bytes=3 << 30)
    ran, texts = run(best_box(limits), START, "%%ranks 1\nx = torch.ones(1 << 30)\nx.sum().item()", HANDS_IN)
    assert "held" in ran.problem and "of memory, and may hold 3 GiB" in ran.problem, (ran.problem, texts)
