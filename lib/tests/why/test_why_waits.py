"""Who waits for whom: flight records of real ranks, made-up ones of each kind, and py-spy's dumps."""

import json
import pickle
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from shardlab import launch
from shardwhy.__main__ import why
from shardwhy.logs import Log
from shardwhy.waits import Record, answer_records, answer_stacks, record_of, stacks_of


def entry(number: int, kind: str = "all_reduce", line: int = 1, sizes=((4,),), state: str = "completed") -> dict:
    frames = [
        {"filename": "/x/torch/distributed/distributed_c10d.py", "line": 99, "name": kind},
        {"filename": "/home/me/train.py", "line": line, "name": "step"},
    ]
    call = {"profiling_name": f"nccl:{kind}", "state": state, "input_sizes": list(map(list, sizes)), "is_p2p": False}
    return {"process_group": ("0", "default_pg"), "collective_seq_id": number, "frames": frames, **call}


def records(folder: Path, *of_ranks: list[dict], world_size: int = 0) -> list[Record]:
    ranks = json.dumps(list(range(world_size or len(of_ranks))))
    for rank, entries in enumerate(of_ranks):
        dump = {"pg_config": {"0": {"desc": "default_pg", "ranks": ranks}}, "entries": entries}
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump))
    return [record_of(file) for file in sorted(folder.iterdir())]


def test_a_rank_that_is_behind_is_named_with_the_call_that_it_did_not_make(tmp_path):
    one, two = entry(1, line=5), entry(2, "broadcast", line=8, state="started")
    said = answer_records(records(tmp_path, [one, two], [one], [one, two]))
    assert "rank 1 did not make call #2 of group default_pg: broadcast [[4]], called at train.py:8" in said[1]
    assert "ranks 0, 2 made it, and wait" in said[2] and "#1: all_reduce [[4]], called at train.py:5" in said[3]


def test_a_rank_without_any_call_is_behind(tmp_path):
    assert "rank 1 did not make call #1" in answer_records(records(tmp_path, [entry(1)], []))[1]


def test_the_first_call_that_differs_is_the_cause(tmp_path):
    said = answer_records(
        records(tmp_path, [entry(1), entry(2)], [entry(1, sizes=((5,),)), entry(2, "barrier"), entry(3)])
    )
    assert "call #1 of group default_pg is not the same" in said[1]
    assert "rank 0: all_reduce [[4]]" in said[1] and "rank 1: all_reduce [[5]]" in said[1]


def test_a_call_of_all_ranks_that_has_not_ended(tmp_path):
    said = answer_records(records(tmp_path, [entry(1, state="started")], [entry(1, state="started")]))
    assert "All ranks made call #1" in said[1] and "network or a GPU" in said[1]


def test_nobody_waits(tmp_path):
    assert "No rank waits" in answer_records(records(tmp_path, [entry(1)], [entry(1)]))[1]


def test_a_rank_without_a_record_is_named(tmp_path):
    assert "no record of ranks 2, 3" in "\n".join(
        answer_records(records(tmp_path, [entry(1)], [entry(1)], world_size=4))
    )


def test_a_record_in_json_is_read_and_other_files_are_not(tmp_path):
    (tmp_path / "rank_7").write_text(json.dumps({"entries": [entry(1)]}))
    assert record_of(tmp_path / "rank_7").rank == 7
    for number, data in enumerate((b"{}", b"\x80\x04", pickle.dumps(Path("x")), b"text", b"", pickle.dumps({"a": 1}))):
        (tmp_path / f"file_{number}").write_bytes(data)
        assert record_of(tmp_path / f"file_{number}") is None


def test_records_of_real_ranks(tmp_path, capsys):
    def step():
        dist.all_reduce(torch.ones(3))
        if dist.get_rank():
            work = dist.broadcast(torch.ones(3), 0, async_op=True)
        (tmp_path / f"trace_rank_{dist.get_rank()}").write_bytes(torch._C._distributed_c10d._dump_fr_trace())
        if not dist.get_rank():
            dist.broadcast(torch.ones(3), 0)
        else:
            work.wait()

    launch(step, 2, device="cpu")
    assert why([str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "rank 0 did not make call" in said and "broadcast [[3]], called at test_why_waits.py" in said


STACK = """Process {}: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread {} (idle): "MainThread"
{}
    main (train.py:90)
    <module> (train.py:99)
Thread 77 (idle): "Thread-1"
    wait (threading.py:327)
"""
IN_A_CALL = """    all_reduce (torch/distributed/distributed_c10d.py:2810)
    wrapper (torch/distributed/c10d_logger.py:83)
    step (train.py:41)"""


def test_the_process_that_is_outside_of_a_collective_is_named_first():
    texts = [STACK.format(n, n, IN_A_CALL) for n in (11, 12)] + [STACK.format(13, 13, "    load (data.py:7)")]
    said = answer_stacks(stacks_of(Log("\n".join(texts).encode())))
    assert said[1] == "process 13: is at data.py:7"
    assert said[2] == "process 11, process 12: waits in all_reduce, called at train.py:41"
    assert "outside of a collective" in said[3]


@pytest.mark.parametrize(
    ("second", "words"), [(IN_A_CALL, "same place"), (IN_A_CALL.replace("all_reduce", "barrier"), "different calls")]
)
def test_all_processes_wait(second, words):
    texts = STACK.format(1, 1, IN_A_CALL) + STACK.format(2, 2, second)
    assert words in "\n".join(answer_stacks(stacks_of(Log(texts.encode()))))


def test_two_threads_of_a_process_in_collectives_are_the_cause():
    saves = IN_A_CALL.replace("step (train.py:41)", "save (checkpoint.py:7)")
    text = STACK.format(1, 1, IN_A_CALL) + f'Thread 5 (idle): "saver"\n{saves}\n' + STACK.format(2, 2, IN_A_CALL)
    said = answer_stacks(stacks_of(Log(text.encode())))
    assert said[0] == "Stacks of 2 processes."
    assert "process 1, thread saver: waits in all_reduce, called at checkpoint.py:7" in said
    assert "two threads of a process" in said[-3] and "dist.new_group()" in said[-2]


def test_a_log_is_no_dump_of_stacks():
    assert stacks_of(Log(b"Thread pool of 3\nMainThread started\n")) == []


def test_an_error_in_a_log_comes_before_the_stacks(tmp_path, capsys):
    (tmp_path / "spy.txt").write_text(STACK.format(1, 1, IN_A_CALL))
    (tmp_path / "train.out").write_text("step 1\n")
    assert why([str(tmp_path)]) == 0 and "Stacks of 1" in capsys.readouterr().out
    (tmp_path / "train.out").write_text(
        "[rank0]: Traceback (most recent call last):\n[rank0]:   File 'x'\n[rank0]: Odd: 3\n"
    )
    assert why([str(tmp_path)]) == 1 and "Odd: 3" in capsys.readouterr().out
