"""Source code and errors of ranks, as a lesson shows them."""

import linecache

from shardcourse.source_text import report, source
from shardlab.model import Attention, Block, RMSNorm

CELL = "/somewhere/ipykernel_7/123.py"
HANG = f"""no result from rank 0 within 3 s

rank 0 was running
  File "{CELL}", line 2, in step
  File "/venv/torch/distributed/c10d.py", line 9, in all_reduce
    work.wait()

rank 1 was running
  File "/lib/queue.py", line 5, in get
    self.wait()
"""


def test_a_report_has_the_code_of_a_cell_that_no_rank_knows(monkeypatch):
    """It is in the notebook's line cache; a frame that brings its code along keeps it, and torch's frames go."""
    lines = ["def step():\n", "    dist.all_reduce(x)\n"]
    monkeypatch.setitem(linecache.cache, CELL, (len("".join(lines)), None, lines, CELL))
    assert report(RuntimeError(HANG)).splitlines()[2:] == [
        "rank 0 was running",
        '  File "123.py", line 2, in step',
        "    dist.all_reduce(x)",
        "",
        "rank 1 was running",
        '  File "queue.py", line 5, in get',
        "    self.wait()",
    ]


def test_torchs_frames_go_where_the_launcher_has_shortened_their_paths():
    """In a notebook its report calls a cell by its number, and torch's files "torch/..."."""
    stack = (
        "rank 0 was running\n  Cell In[5], line 13, in train_step\n    loss.backward()\n"
        '  File "torch/_tensor.py", line 623, in backward\n    torch.autograd.backward(\n'
        '  File "shardlab/ddp/wrapper.py", line 7, in forward\n    self.send()\n'
    )
    assert report(RuntimeError(stack)).splitlines() == [
        "rank 0 was running",
        "  Cell In[5], line 13, in train_step",
        "    loss.backward()",
        '  File "wrapper.py", line 7, in forward',
        "    self.send()",
    ]


def test_code_that_nobody_knows_is_left_out():
    assert report(RuntimeError(f'  File "{CELL}", line 2, in step')) == '  File "123.py", line 2, in step'


def test_a_with_statement_of_torch_is_no_frame_of_the_caller():
    error = RuntimeError('  File "/x/contextlib.py", line 137, in __enter__\n    next(gen)\nrank 1 was running')
    assert report(error) == "rank 1 was running"


def test_a_method_says_of_which_class_it_is():
    lines = source(RMSNorm, Attention.forward, Block.forward).data.splitlines()
    assert lines[1].startswith("class RMSNorm")
    heads = [i for i, line in enumerate(lines) if line.startswith("# of ")]
    assert [lines[i] for i in heads] == ["# of Attention", "# of Block"]
    assert all(lines[i + 1].startswith("def forward(") for i in heads)


def test_an_error_of_somebody_elses_opens_no_file(tmp_path):
    (tmp_path / "secret").write_text("secret\n")
    error = RuntimeError(f'  File "{tmp_path}/secret", line 1, in x')
    assert report(error, add_code=False) == '  File "secret", line 1, in x'
