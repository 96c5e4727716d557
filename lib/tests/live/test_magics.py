"""The notebook's commands, in a real kernel: what a cell shows, and that a cell fails when a rank does."""

import re

import nbformat
import papermill
import pytest
from nbclient import NotebookClient
from papermill.exceptions import PapermillExecutionError

from shardlive import magics
from shardlive.live_job import LiveJob
from shardsim import simulated


def texts(cells: list[str]) -> list[str]:
    """Run the cells in a kernel; return what each shows, an error by its last line."""
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    NotebookClient(nb, timeout=120, allow_errors=True).execute()
    shown = []
    for cell in nb.cells:
        parts = [o.get("text") or "\n".join(o.get("traceback", [])) or o["data"]["text/plain"] for o in cell.outputs]
        shown.append("".join(parts).strip())
    return shown


@pytest.mark.timeout(240)
def test_a_notebook_talks_to_ranks_that_stay():
    shown = texts(
        [
            "%load_ext shardlab\n%ranks start 3 --device cpu",
            "%%ranks\nx = torch.ones(2) * rank\nx.sum().item()",
            "%%ranks 0\ndist.all_reduce(x)",
            "%ranks",
            "%%ranks 1-2 --wire\ndist.all_reduce(x)",
            'pull("x[0].item()")',
            "twice, half = lambda y: 2 * y + 0 * rank, 0.5\n%ranks push twice, half",
            "%%ranks\ntwice(3) + half - 0.5",
            "%%ranks\nif rank == 2:\n    y = 5\n    1 / 0",
            "%ranks debug 2 [y, 'a']",
            "%ranks resart",
            "%ranks push twise",
            "%%ranks --wier\n1",
            "%ranks restart",
            "%ranks push",
            "%%ranks 0\ndist.barrier()",
            "%ranks start 2 --device cpu",
            "%ranks stop",
            "%ranks",
            'pull("1")',
        ]
    )
    assert shown[0] == "3 ranks are there"
    assert shown[1].splitlines()[2] == "[rank 2] 4.0"
    assert "rank 0 waits in all_reduce" in shown[2] == shown[3]
    assert shown[4].startswith("[ranks 1, 2] sent 1 all_reduce")
    assert shown[5] == "[3.0, 3.0, 3.0]"
    assert shown[7] == "[every rank] 6.0"
    assert "[rank 2] ZeroDivisionError: division by zero" in shown[8] and '"<cell In[9]>", line 4' in shown[8]
    assert "ipykernel" not in shown[8]  # not the notebook's own frames
    assert shown[9] == "[5, 'a']"
    assert "%ranks resart is no command, or not a whole one." in shown[10] and "%ranks restart  " in shown[10]
    assert shown[11] == "ValueError: %ranks push twise: the notebook has no twise"
    assert shown[12] == "GetoptError: option --wier not recognized"
    assert shown[13] == "[ranks 0, 1] lost: x, twice, half\n[rank 2]     lost: x, twice, half, y"
    assert shown[14].startswith("ValueError: %ranks push is no command, or not a whole one.")
    assert shown[16] == "the ranks that were there are ended.\nthe call that was pending is given up\n2 ranks are there"
    assert shown[17] == ""
    no_ranks = "RuntimeError: no ranks have been started: %load_ext shardlab, then %ranks start 4"
    assert shown[18] == shown[19] == no_ranks


@pytest.mark.timeout(240)
def test_start_and_restart_work_at_once_when_all_ranks_have_ended():
    all_end = "%%ranks\nimport os\nos._exit(3)"
    shown = texts(
        ["%load_ext shardlab\n%ranks start 2 --device cpu", all_end, "%ranks restart", all_end, "%ranks start 3"]
    )
    assert shown[1].startswith("RankError: rank 0 has ended (exited with code 3")
    assert shown[2] == "[every rank] had ended"
    assert shown[4] == "the ranks that were there are ended.\n[every rank] had ended\n3 ranks are there"


def test_the_ranks_that_were_there_have_ended_before_others_start(monkeypatch, capsys, all_gone):
    """A GPU's memory may not hold both."""
    monkeypatch.setattr(magics, "_ranks", [])
    magics.ranks("start 2 --device cpu")
    pids, start = magics.pull("__import__('os').getpid()"), LiveJob.start

    def start_alone(job: LiveJob) -> None:
        assert all_gone(pids)
        start(job)

    monkeypatch.setattr(LiveJob, "start", start_alone)
    magics.ranks("start 1 --device cpu")
    assert capsys.readouterr().out == "2 ranks are there\n1 ranks are there\n"
    magics.ranks("stop")


@pytest.mark.timeout(240)
def test_of_many_lines_a_notebook_gets_the_first_and_the_last_and_a_file_has_all():
    start, many = "%load_ext shardlab\n%ranks start 2 --device cpu", "for i in range(20_000): print(rank, i)"
    again = f"%%capture captured\nget_ipython().run_cell_magic('ranks', '', {many!r})"
    read = "import re\nprint(open(re.search(r'all are in (\\S+)', captured.stdout)[1]).read())"
    pending = "%%ranks 0\nfor i in range(5_000): print(i)\ndist.barrier()"
    wide = "%%ranks 1\nprint('y' * 50_000, flush=True)"
    shown = texts([start, f"%%ranks\n{many}", again, read, pending, wide])
    lines = shown[1].splitlines()
    assert len(lines) == 1_102
    assert lines[1_000] == "... more lines: the last ones are shown when the cell ends"
    assert lines[1_001].startswith("... 38,900 lines are left out or cut here. Until the ranks end, all are in /")
    assert lines[-1] in ("[rank 1] 1 19999", "[rank 0] 0 19999")
    assert sorted(shown[3].splitlines()) == sorted(f"[rank {r}] {r} {i}" for i in range(20_000) for r in (0, 1))
    assert shown[4].splitlines()[-1].startswith("rank 0 waits in barrier")  # this is never left out
    [line, where] = shown[5].splitlines()[:2]
    assert len(line) < 11_000 and "more characters ..." in line
    assert where.startswith("... 1 lines are left out or cut here. Until the ranks end, all are in /")


@pytest.mark.timeout(240)
def test_what_a_command_can_not_do_is_told_without_frames_and_ends_no_rank():
    wrong = ["%ranks start 0", "%ranks start 3 --network '2x2 nodes, 1 GB/s inside, 9 MB/s between'"]
    wrong += ["%ranks start 2 --network fast", "%ranks push made", "%ranks push file"]
    first = "%load_ext shardlab\n%ranks start 2 --device cpu\nmade, file = (i for i in 'ab'), open('/dev/null', 'w')"
    fails = "%%ranks 1\ndef f(): raise KeyError('k')\nf()"
    shown = texts([first, "%%ranks\nv = rank", *wrong, 'pull("v", 1)', fails, "%ranks debug 1"])
    for said in shown[2:7]:
        assert re.match(r"(Value|Type|Pickling)Error: .", said) and "Traceback" not in said and "File " not in said
    assert shown[7] == "[1]"
    assert '"<cell In[9]>", line 3' in shown[8]
    assert shown[9] == "the function that failed has no names of its own"


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("last", "error"),
    [
        ("%%ranks 1\n1 / 0", r"\[rank 1\] ZeroDivisionError: division by zero"),
        ("%ranks stop", "not everything was over. rank 0 waits in barrier, line 2: dist.barrier\\(\\), for rank 1"),
    ],
)
def test_papermill_stops_where_a_rank_fails_and_where_something_is_pending_at_the_end(last, error, tmp_path):
    cells = ["%load_ext shardlab\n%ranks start 2 --device cpu", "%%ranks 0\ndist.barrier()", last]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells], metadata=kernel)
    nbformat.write(nb, tmp_path / "in.ipynb")
    with pytest.raises(PapermillExecutionError, match=error) as stopped:
        papermill.execute_notebook(tmp_path / "in.ipynb", None, progress_bar=False)
    assert stopped.value.exec_count == 3


def test_the_help_pages_network_can_be_had():
    assert simulated(re.search('--network "([^"]+)"', magics.HELP)[1])
