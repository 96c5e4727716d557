"""A submission's notebook in its box: what comes out, and what comes out when it does not play along."""

import random
import time
from contextlib import closing

import nbformat
import psutil
import pytest
from deadlines import deadline_s
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from submissions import running

from grading.boxes.answers_folder_and_output_limits import MOST_OF_ALL, MOST_OUTPUTS
from grading.boxes.notebook_runner_client import NotebookRun, NotebookRunner, _read
from grading.boxes.notebook_runner_in_box import LONGEST_OUTPUT, MOST_OUTPUT, _cells
from grading.boxes.sandbox import Processes, best_box

PYTHON = {"kernelspec": {"name": "python3", "language": "python", "display_name": "Python 3"}}
HANDS_IN = (
    "import os, pathlib; answers = pathlib.Path(os.environ['SHARDLAB_ANSWERS']); (answers / 'a').write_bytes(b'1');"
)


@pytest.fixture(scope="module")
def runner():
    runner = NotebookRunner(best_box())
    yield runner
    runner.close()


def run(runner, *sources: str, folder: str | None = None, cell_timeout_s: int = 30, timeout_s: int = 60):
    nb = new_notebook(cells=[new_code_cell(source) for source in sources], metadata=PYTHON)
    return runner.run(nb, folder, parameters={"tier": "cpu"}, cell_timeout_s=cell_timeout_s, timeout_s=timeout_s)


def text(run) -> str:
    return "".join(str(output) for cell in run.cells for output in cell.outputs)


def test_outputs_and_answers_of_each_cell_whatever_others_raise(runner, tmp_path):
    (tmp_path / "data.txt").write_text("of the submission")
    tags = {"tags": ["parameters"]}
    nb = new_notebook(metadata=PYTHON)
    nb.cells = [new_markdown_cell("# A title"), new_code_cell("tier = 'no'", metadata=tags), new_code_cell("1 / 0")]
    nb.cells += [new_code_cell(HANDS_IN), new_code_cell("print(tier, open('data.txt').read())")]
    ran = runner.run(
        nb,
        str(tmp_path),
        parameters={"tier": "cpu"},
        cell_timeout_s=round(deadline_s(30)),
        timeout_s=round(deadline_s(60)),
    )
    outputs = [cell.outputs for cell in ran.cells]
    assert [len(o) for o in outputs] == [0, 0, 1, 0, 1]
    assert (outputs[2][0].ename, outputs[4][0].text) == ("ZeroDivisionError", "cpu of the submission\n")
    assert (ran.answers, ran.problem) == ({"a": b"1"}, "")


@pytest.mark.parametrize("box", [Processes(None), best_box()], ids=lambda box: box.name[:9])
def test_a_temporary_folder_of_a_long_name_is_none_too_long_for_the_kernels_sockets(box, tmp_path, monkeypatch):
    """A socket's path may have 107 characters."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with closing(NotebookRunner(box)) as runner:
        assert run(runner, HANDS_IN).answers == {"a": b"1"}


def test_a_cell_that_never_ends_is_interrupted_and_the_next_one_runs(runner):
    ran = run(runner, "while True: pass", HANDS_IN, cell_timeout_s=2)
    assert "ran longer than 2 s" in text(ran)
    assert ran.answers == {"a": b"1"}


def test_a_notebook_that_never_ends_has_handed_in_what_it_has(runner):
    began, limit_s = time.monotonic(), round(deadline_s(3))
    ran = run(
        runner,
        HANDS_IN,
        "import time\nwhile True:\n try: time.sleep(60)\n except BaseException: pass",
        timeout_s=limit_s,
    )
    assert ran.answers == {"a": b"1"}
    assert f"the notebook ran longer than {limit_s} s" in text(ran)
    assert time.monotonic() - began < limit_s + deadline_s(30)


def test_a_kernel_that_dies_is_named_and_what_it_handed_in_before_counts(runner):
    ran = run(runner, HANDS_IN, "import os; os._exit(0)", "print('never')")
    assert (ran.answers, ran.killed) == ({"a": b"1"}, True)
    assert [[o.get("evalue") for o in cell.outputs] for cell in ran.cells] == [[], ["the kernel died in this cell"], []]


def test_a_kernel_that_ends_the_processes_around_it_loses_its_answers_alone(runner):
    ends_all = "import os, signal\nfor p in os.listdir('/proc'):\n if p.isdigit() and int(p) != os.getpid():\n"
    ends_all += "  try: os.kill(int(p), 9)\n  except OSError: pass\nos._exit(0)"
    if runner.box.name == "bubblewrap":  # else it would end everything
        ran = run(runner, HANDS_IN, ends_all)
        assert ran.problem.startswith("the notebook could not be run to its end: the processes ended without a reply")
        assert ran.killed
    assert run(runner, HANDS_IN).answers == {"a": b"1"}


@pytest.mark.parametrize(
    ("killed", "runs", "last"), [([False], 1, 0), ([True, False], 2, 1), ([True, True, False], 2, 1)]
)
def test_who_was_killed_is_run_once_more_and_the_second_run_counts(killed, runs, last, runner, monkeypatch):
    each = [NotebookRun(problem=str(i), killed=k) for i, k in enumerate(killed)]
    left = iter(each)
    monkeypatch.setattr(runner, "_run_once", lambda *_: next(left))
    assert runner.run(new_notebook(), None, timeout_s=60) == each[last]
    assert len(list(left)) == len(each) - runs


@pytest.mark.parametrize(("took_s", "allowed_s"), [(0.2, [10, 9]), (6.0, [10])])
def test_a_killed_notebook_is_run_again_in_what_is_left_of_its_time(took_s, allowed_s, runner, monkeypatch):
    """One that ends itself just before time is up would take all of it twice."""
    clock, allowed = iter([0.0, took_s]), []
    monkeypatch.setattr("grading.boxes.notebook_runner_client.time.monotonic", lambda: next(clock))

    def once(nb, folder, order):
        allowed.append(order["timeout_s"])
        return NotebookRun(killed=True)

    monkeypatch.setattr(runner, "_run_once", once)
    runner.run(new_notebook(), None, timeout_s=10)
    assert allowed == allowed_s


@pytest.mark.parametrize(
    ("dies", "runs"),
    [
        pytest.param("kernel", 2, marks=pytest.mark.night),
        ("host", 2),
        pytest.param("neither", 1, marks=pytest.mark.night),
    ],
)
def test_a_notebook_that_was_killed_is_run_once_more(dies, runs, tmp_path):
    """The system may have done it, short of memory. In the box that shows the files of here: to count the runs."""
    victim = {"kernel": "os.getpid()", "host": "psutil.Process().parents()[1].pid", "neither": None}[dies]
    count = f"import os, psutil, time; open({str(tmp_path / 'runs')!r}, 'a').write('.')"
    with closing(NotebookRunner(Processes(None))) as runner:
        ran = run(runner, HANDS_IN, count, f"os.kill({victim}, 9); time.sleep(30)" if victim else "1 / 0")
        assert (tmp_path / "runs").read_text() == runs * "."
        assert ran.killed == (runs > 1)
        once = f"if len(open({str(tmp_path / 'runs')!r}).read()) == {runs + 1}: os.kill({victim or 0}, 9)"
        assert dies == "neither" or run(runner, HANDS_IN, count, once).answers == {"a": b"1"}


@pytest.mark.parametrize("box", [Processes(None), best_box()], ids=lambda box: box.name)
def test_what_a_cell_leaves_running_ends_with_the_notebook(box):
    seconds = str(random.randrange(60_000, 90_000))
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    source = f"import subprocess; subprocess.Popen(['sleep', '{seconds}'], start_new_session=True)"
    with closing(NotebookRunner(box)) as runner:
        assert "error" not in [output.output_type for output in run(runner, source).cells[0]["outputs"]]
    assert not running(seconds)
    after = psutil.Process().children(recursive=True)
    assert [p for p in after if p.pid not in before and p.status() != psutil.STATUS_ZOMBIE] == []


def test_many_outputs_and_a_long_one_are_shortened_and_the_error_is_kept(runner):
    source = "from IPython.display import display\nfor i in range(1000): display(i)\nraise ValueError('the end')"
    ran = run(runner, source, f"print('x' * {LONGEST_OUTPUT + 1000})", HANDS_IN)
    kept, (long,) = (ran.cells[i]["outputs"] for i in (0, 1))
    assert len(kept) == 202
    assert kept[200]["text"] == "(800 more outputs)\n"
    assert kept[-1]["evalue"] == "the end"
    assert long["text"] == "x" * LONGEST_OUTPUT + "\n(shortened)\n"
    assert ran.answers == {"a": b"1"}


def test_of_all_outputs_together_so_much_is_kept(tmp_path):
    """What the host replies of a notebook with more; small outputs after the large ones are not kept either."""
    text = "x" * (900 << 10)
    cells = [new_code_cell(outputs=[new_output("stream", text=words)]) for words in (*[text] * 40, "short")]
    nbformat.write(new_notebook(cells=cells), tmp_path / "out.ipynb")
    kept = [cell["outputs"][0]["text"] for cell in _cells(tmp_path / "out.ipynb", 30, None)]
    assert len(kept) == 41
    whole = kept.count(text)
    assert whole == MOST_OUTPUT // len(text)
    assert kept[:whole] == [text] * whole
    assert all("too much output" in words for words in kept[whole:])


@pytest.mark.night
def test_output_without_end_is_shortened(runner):
    ran = run(runner, "print('x' * (20 << 20))", *["print('x' * (900 << 10))"] * 30, HANDS_IN)
    assert 10 << 20 < len(text(ran)) < 30 << 20
    assert "(shortened)" in text(ran)
    assert "too much output" in text(ran)
    assert ran.answers == {"a": b"1"}


def test_only_plain_files_are_answers(runner):
    source = HANDS_IN + "\nos.symlink('/etc/hostname', answers / 'link'); os.mkfifo(answers / 'fifo')"
    source += "\n(answers / 'folder').mkdir(); open(answers / 'large', 'wb').truncate(1 << 30)"
    assert run(runner, source).answers == {"a": b"1"}


REPLIES = {
    "nothing": {},
    "too few cells": {"cells": [], "answers": {}},
    "a number": {"cells": 3, "answers": {}},
    "answers that are none": {"cells": [], "answers": [1]},
    "no base64": {"cells": [], "answers": {"a": "é"}},
    "outputs of no type": {"cells": [{"outputs": [{"output_type": "grade"}], "execution_count": 1}], "answers": {}},
    "outputs of no form": {"cells": [{"outputs": {"score": 9}, "execution_count": 1}], "answers": {}},
    "no count": {"cells": [{"outputs": [], "execution_count": [1]}], "answers": {}},
}


@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)
def test_a_forged_reply_is_nothing_handed_in(reply):
    ran = _read(reply, n_cells=1)
    assert (ran.cells, ran.answers) == ([], {})
    assert "not readable" in ran.problem


def test_a_forged_reply_of_too_many_outputs_is_not_checked_one_by_one(monkeypatch):
    monkeypatch.setattr("grading.boxes.notebook_runner_client._outputs", lambda cell: pytest.fail("it is checked"))
    output = {"output_type": "stream", "name": "stdout", "text": "x"}
    cells = [{"outputs": [output] * MOST_OUTPUTS, "execution_count": 1}] * (MOST_OF_ALL // MOST_OUTPUTS + 1)
    ran = _read({"cells": cells, "answers": {}}, n_cells=len(cells))
    assert (ran.cells, "not readable" in ran.problem) == ([], True)


def test_a_forged_reply_of_more_than_the_host_keeps_is_not_read():
    text = new_output("stream", text="x" * (MOST_OUTPUT + (2 << 20)))
    assert "not readable" in _read({"cells": [{"outputs": [text], "execution_count": 1}], "answers": {}}, 1).problem


def test_a_long_error_and_a_long_table_are_shortened(tmp_path):
    long = "x" * (LONGEST_OUTPUT + 1)
    outputs = [new_output("error", ename=long, evalue=long, traceback=[long, long])]
    outputs += [new_output("display_data", {"text/html": long, "image/png": long})]
    nbformat.write(new_notebook(cells=[new_code_cell(outputs=outputs)]), tmp_path / "out.ipynb")
    ((error, shown),) = (cell["outputs"] for cell in _cells(tmp_path / "out.ipynb", 30, None))
    cut = long[:-1] + "\n(shortened)\n"
    assert (error.ename, error.evalue, error.traceback) == (cut, cut, [cut])
    assert shown.data == {"text/html": cut, "image/png": long}


def test_of_many_cells_with_many_outputs_the_first_are_kept(tmp_path):
    many = [new_output("stream", text="x")] * MOST_OUTPUTS
    nb = new_notebook(cells=[new_code_cell(outputs=many) for _ in range(MOST_OF_ALL // MOST_OUTPUTS + 5)])
    nbformat.write(nb, tmp_path / "out.ipynb")
    cells = _cells(tmp_path / "out.ipynb", 30, None)
    assert [len(cell["outputs"]) for cell in cells] == [MOST_OUTPUTS] * (MOST_OF_ALL // MOST_OUTPUTS) + [1] * 5
    assert _read({"cells": cells, "answers": {}}, len(cells)).problem == ""


def test_a_box_that_does_not_start_is_no_fault_of_the_notebook():
    class Broken(Processes):
        def command(self, program, readable=(), modules=()):
            return ["false"]

    runner = NotebookRunner(Broken(None))
    with pytest.raises(RuntimeError, match="a box did not start, and nothing of the notebook was run"):
        runner.run(new_notebook(), None, timeout_s=deadline_s(10))
    runner.close()
