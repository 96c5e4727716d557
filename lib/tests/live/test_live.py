"""Live ranks: what a cell shows, what is pending and what frees it, errors, interrupts, deaths; no rank is left."""

import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from deadlines import deadline_s

from shardlive import RankError, Ranks
from shardlive.magics import chosen_ranks
from shardsim import simulated


def shown(ranks: Ranks, source: str, of=None, **options) -> list[str]:
    lines: list[str] = []
    ranks.run(source, of, show=lines.append, **options)
    return lines


# What is shown


def test_names_stay_and_what_is_equal_is_shown_once(four):
    assert shown(four, "x = torch.full((4,), float(rank)); x")[1:3] == [
        "[rank 1] tensor [4] float32: 1, 1, 1, 1",
        "[rank 2] tensor [4] float32: 2, 2, 2, 2",
    ]
    assert shown(four, "dist.all_reduce(x)\nprint('added')\nx") == [
        "[every rank] added",
        "[every rank] tensor [4] float32: 6, 6, 6, 6",
    ]
    assert four.pull("x.tolist()") == [[6.0] * 4] * 4


def test_some_ranks_are_named(four):
    assert shown(four, "rank < 2") == ["[ranks 0, 1] True", "[ranks 2, 3] False"]
    assert shown(four, "'here'", [3, 1]) == ["[ranks 1, 3] 'here'"]
    assert shown(four, "1;") == []


def test_printing_streams_line_by_line_before_the_cell_ends(four):
    began, seen = time.monotonic(), []
    cell = "import time\nif rank == 1:\n    print('now', flush=True)\n    time.sleep(3)\nprint('end')"
    four.run(cell, show=lambda line: seen.append((line, time.monotonic() - began)))
    assert [line for line, _ in seen if "now" in line] == ["[rank 1] now"]
    assert next(at for line, at in seen if "now" in line) < 2.5 < seen[-1][1]


def test_a_megabyte_of_output_is_all_there(four):
    lines = shown(four, "for i in range(20_000): print(rank, i, 'x' * 40)", [2, 3])
    for rank in (2, 3):
        mine = [line for line in lines if line.startswith(f"[rank {rank}]")]
        assert mine == [f"[rank {rank}] {rank} {i} {'x' * 40}" for i in range(20_000)]


def test_what_was_sent_and_held_is_shown_when_asked_for(four):
    lines = shown(four, "y = torch.ones(1000); dist.all_reduce(y);", wire=True, memory=True)
    assert "sent 1 all_reduce (6,000 bytes)" in lines[0]
    shown(four, "z = torch.ones(500, dtype=torch.float64);")
    [line] = shown(four, "1;", memory=True, of=[1])  # what was there before counts, too
    held, peak = (int(n.replace(",", "")) for n in re.findall(r"[\d,]+(?= bytes|$)", line))
    assert line.startswith("[rank 1] holds") and 8_000 <= held == peak, line
    [line] = shown(four, "torch.ones(1000) + 1;", memory=True, of=[1])
    assert int(line.split()[-1].replace(",", "")) == peak + 8_000
    shown(four, "w = torch.ones(1000, requires_grad=True); w.sum().backward()")
    [line] = shown(four, "1;", memory=True, of=[1])
    assert int(line.split()[-1].replace(",", "")) == peak + 8_000, "a gradient counts"
    [line] = shown(four, "del z;", memory=True, of=[1])  # what the cell deletes is gone
    held, peak = (int(n.replace(",", "")) for n in re.findall(r"[\d,]+(?= bytes|$)", line))
    assert held == peak - 4_000, line
    shown(four, "del w, y")


def test_a_freed_tensor_is_said_to_be_freed(four):
    freed = shown(four, "f = torch.ones(3); f.untyped_storage().resize_(0); f", [0])
    assert freed == ["[rank 0] tensor [3] float32, freed"]


def test_functions_travel_by_value(four):
    def double(x):
        return 2 * x

    four.push(double=double)
    assert four.pull("double(rank)") == [0, 2, 4, 6]
    four.push(ranks=[2], double=4)
    assert four.pull("callable(double)") == [True, True, False, True]


def test_names_that_can_not_be_unpacked_are_an_error_and_the_rank_still_answers(four):
    class Broken:
        def __reduce__(self):
            return int, ("no number",)

    with pytest.raises(RankError, match=r"\[every rank\] ValueError"):
        four.push(broken=Broken())
    assert four.pull("rank") == [0, 1, 2, 3]


def test_a_weight_is_seen_sharded_whole_and_sharded_again(four):
    shown(four, "from torch.distributed.fsdp import fully_shard\nm = torch.nn.Linear(8, 8)\nfully_shard(m);")
    kind = "type(m.weight).__name__, tuple(m.weight.shape)"
    assert set(four.pull(kind)) == {("DTensor", (8, 8))}
    shown(four, "m.unshard();")
    assert set(four.pull(kind)) == {("Parameter", (8, 8))}
    shown(four, "m.reshard();")
    assert set(four.pull("tuple(m.weight.to_local().shape)")) == {(2, 8)}


def test_on_a_simulated_network():
    with Ranks(4, network=simulated("2x2 nodes, 1 GB/s inside, 100 MB/s between")) as ranks:
        [said] = shown(ranks, "dist.all_reduce(torch.ones(3))", [0, 1])
        assert "ranks 0, 1 wait in all_reduce Float[3]" in said and "for ranks 2, 3" in said
        shown(ranks, "dist.all_reduce(torch.ones(3))", [2, 3])
        assert ranks.pending == ""


# Pending


@pytest.mark.parametrize(
    "call",
    ["dist.all_reduce(torch.ones(3))", "dist.barrier()", "dist.broadcast(torch.ones(2), 0)", "dist.new_group([0, 1])"],
)
def test_a_call_that_some_have_made_is_pending_and_the_others_free_it(four, call):
    said = "\n".join(shown(four, f"a = 1\n{call};", [1, 2]))
    assert "ranks 1, 2" in said or "rank 1 waits at line 2" in said
    assert four.pull("a", [1]) == [1]  # a rank that waits answers
    with pytest.raises(ValueError, match="did not end an earlier cell"):
        four.run("b = 1", [1])
    assert shown(four, f"{call};", [0, 3]) == []
    assert four.pending == ""


def test_who_has_called_something_else_is_named(three):
    said = "\n".join(shown(three, "x = torch.ones(2)\ndist.all_reduce(x) if rank < 2 else dist.broadcast(x, 0)"))
    assert "ranks 0, 1 called all_reduce Float[2], rank 2 called broadcast Float[2]" in said
    assert "restart" in said
    assert "ranks 0" in three.pending
    assert "[every rank] lost: x" in three.restart()
    assert shown(three, "rank")[2] == "[rank 2] 2"


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (
            "dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)",
            "rank 0 called all_reduce Float[2] with op=SUM, rank 1 called all_reduce Float[2] with op=MAX",
        ),
        (
            "dist.all_reduce(torch.ones(2) if rank else torch.ones(2, dtype=torch.int64))",
            "rank 0 called all_reduce Long[2], rank 1 called all_reduce Float[2]",
        ),
    ],
)
def test_what_differs_between_the_ranks_calls_is_named_before_the_last_one_comes(three, cell, words):
    [said] = shown(three, cell, [0, 1])
    assert (
        said
        == f"{words}: a group's ranks must make the same calls, with the same shapes. This cannot end well: restart."
    )


def test_calls_of_one_order_with_other_roots_are_named(three):
    [said] = shown(three, "dist.reduce(torch.ones(2), dst=rank)")
    assert re.search("rank [12] called reduce Float.2. with op=SUM, group_dst=[12]", said) and "restart" in said


def test_a_call_that_one_rank_has_left_with_another_size_is_no_call_under_way(three):
    """gloo lets a rank go that asked for fewer bytes than its peers; they wait for ever."""
    [said] = shown(three, "dist.all_reduce(torch.ones(2 if rank else 4))")
    assert "rank 0 called all_reduce Float[4], ranks 1, 2 called all_reduce Float[2]" in said


def test_a_message_that_nobody_takes_is_pending(three):
    said = "\n".join(shown(three, "dist.send(torch.ones(2), 2)", [0]))
    assert "rank 0 waits at line 1: dist.send" in said
    assert shown(three, "t = torch.zeros(2); dist.recv(t, 0); t", [2]) == ["[rank 2] tensor [2] float32: 1, 1"]
    assert three.pending == ""


def test_who_has_called_already_is_not_missing(three):
    shown(three, "work = dist.all_reduce(torch.ones(2), async_op=True);", [0])
    [said] = shown(three, "dist.all_reduce(torch.ones(2))", [1])
    assert said.startswith("rank 1 waits in all_reduce Float[2]") and "for rank 2. Pending" in said
    assert shown(three, "dist.all_reduce(torch.ones(2))", [2]) == []


def test_who_must_leave_another_call_first_is_named(three):
    shown(three, "pair = dist.new_group([0, 1]);")
    shown(three, "dist.barrier()", [0])
    said = shown(three, "dist.all_reduce(torch.ones(2), group=pair)", [1])[0].splitlines()
    assert said[0].startswith("rank 0 waits in barrier") and "for ranks 1, 2: rank 1 must leave another call" in said[0]
    assert said[1].startswith("rank 1 waits in all_reduce") and "for rank 0: rank 0 must leave another" in said[1]


def test_messages_that_all_ranks_wait_for_are_named_after_an_interrupt(three):
    """Before, they may be under way: gloo records no messages."""
    lines, seconds = interrupted(three, "dist.recv(torch.zeros(1), (rank + 1) % 3)", 1.0)
    assert seconds < deadline_s(2)
    assert "rank 2 waits at line 1: dist.recv" in lines[-1] and "restart" in lines[-1]
    with pytest.raises(RankError, match="not everything was over. rank 0 waits at line 1"):
        three.stop()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("dist.reduce(torch.ones(2), dst=rank, async_op=True).wait()", "All its ranks have called it."),
        ("dist.send(torch.ones(2), (rank + 1) % 3)", "It ends when another rank sends or receives"),
    ],
)
def test_a_call_that_all_have_made_and_that_does_not_end_is_told_while_the_cell_waits(three, call, words, monkeypatch):
    monkeypatch.setattr("shardlive.session._LONG_S", 1.0)
    lines, _ = interrupted(three, call, 5.0)
    assert words in lines[0] and "Interrupt ends the waiting here" in lines[0]
    assert words in three.pending
    with pytest.raises(RankError, match="not everything was over"):
        three.stop()


def test_a_loop_of_slow_calls_is_not_told_to_be_one_call(four, monkeypatch):
    monkeypatch.setattr("shardlive.session._LONG_S", 1.0)
    cell = "import time\nfor i in range(12):\n    time.sleep(0.3 * (rank == 0))\n    dist.barrier()"
    assert shown(four, cell) == []


def test_a_rank_that_computes_in_torch_is_not_called_waiting(four):
    """Backward runs in C++ for seconds, at one line of torch's Python."""
    cell = """
import time
x = w = torch.randn(1000, 1000, requires_grad=True)
for _ in range(12):
    x = (x @ w).tanh()
began = time.monotonic()
x.sum().backward()
seconds = time.monotonic() - began"""
    assert shown(four, cell, [0]) == []
    assert four.pull("seconds", [0])[0] > 0.3


@pytest.mark.parametrize("work", ["while time.time() < end: pass", "time.sleep(2)"])
def test_ranks_that_wait_for_one_that_computes_are_not_pending(four, work):
    began = time.monotonic()
    cell = f"import time\nend = time.time() + 2\nif rank == 3:\n    {work}\ndist.barrier()"
    assert shown(four, cell) == []
    assert time.monotonic() - began > 1.9


# Errors, interrupts, deaths


def test_an_error_names_its_rank_and_line_and_the_others_keep_their_names(four):
    with pytest.raises(RankError, match=r"(?s)\[rank 2\] ZeroDivisionError.*line 3.*1 / 0"):
        four.run("n = rank + 1\nif rank == 2:\n    1 / 0\nz = rank")
    assert four.pull("n") == [1, 2, 3, 4]
    assert four.debug(2).endswith("n = 3")
    assert four.debug(2, "n * 10") == "30"
    with pytest.raises(RankError):
        four.run("def halve(n):\n    half = n // 2\n    raise ValueError(half)\nhalve(8)", [1])
    assert four.debug(1) == "n = 8\nhalf = 4"
    with pytest.raises(RankError, match=r"\[every rank\] SyntaxError"):
        four.run("for")
    with pytest.raises(RankError, match=r"\[rank 1\] SystemExit"):
        four.run("import sys; sys.exit(3)", [1])


def test_those_who_wait_for_a_rank_that_failed_are_named_and_can_be_freed(four):
    lines: list[str] = []
    with pytest.raises(RankError, match="rank 0"):
        four.run("if rank == 0: raise KeyError('k')\ndist.barrier()", show=lines.append)
    assert "ranks 1-3 wait in barrier" in lines[-1]
    assert shown(four, "dist.barrier()", [0]) == []
    assert four.pending == ""


def interrupted(ranks: Ranks, cell: str, after_s: float, of=None) -> tuple[list[str], float]:
    """The lines shown, and how many seconds after the interrupt the notebook was back."""
    lines, at = [], []

    def press() -> None:
        time.sleep(after_s)
        at.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        ranks.run(cell, of, show=lines.append)
    return lines, time.monotonic() - at[0]


def test_an_interrupt_ends_what_computes_and_leaves_what_waits(three):
    cell = "import time\nif rank == 0:\n    time.sleep(60)\ndist.barrier()"
    lines, seconds = interrupted(three, cell, 1.5)
    assert seconds < deadline_s(2)
    assert "ranks 1, 2 wait in barrier" in lines[-1]
    assert shown(three, "dist.barrier()", [0]) == []
    assert three.pull("rank") == [0, 1, 2]


def test_a_rank_that_dies_is_named_and_the_others_keep_their_names(three):
    shown(three, "kept = rank")
    with pytest.raises(RankError, match=r"rank 1 has ended \(exited with code 7"):
        three.run("import os\nif rank == 1: os._exit(7)")
    assert three.pull("kept", [0, 2]) == [0, 2]
    assert three.pull("kept") == [0, None, 2]  # a rank's value stands at its number
    assert "rank 1 has ended" in three.gone
    assert shown(three, "'on'", [0, 2]) == ["[ranks 0, 2] 'on'"]
    with pytest.raises(RankError, match="rank 1 has ended"):
        three.run("1", [1])
    assert three.restart().splitlines() == ["[ranks 0, 2] lost: kept, os", "[rank 1]     had ended"]
    assert shown(three, "dist.barrier(); 'again'") == ["[every rank] 'again'"]


def test_errors_of_the_others_are_told_beside_a_ranks_end(three):
    known = "raise RuntimeError('Expected to mark a variable ready only once.')"  # the index has it
    with pytest.raises(RankError, match=r"(?s)rank 1 has ended.*\[rank 2\] RuntimeError: Expected to mark") as told:
        three.run(f"import os, time\nif rank == 1: os._exit(7)\ntime.sleep(0.5)\nif rank == 2: {known}")
    assert "messages.md#ready_only_once" in told.value.__notes__[0]


def test_a_rank_that_gloo_ends_says_which_calls_differ_and_where_this_is_explained(three):
    with pytest.raises(RankError, match="rank . has ended .was killed by SIGABRT") as ended:
        three.run("dist.all_reduce(torch.ones(2, dtype=torch.float32 if rank == 0 else torch.float64))", [0, 1, 2])
    assert "rank 0 called all_reduce Float[2], ranks 1, 2 called all_reduce Double[2]" in str(ended.value)
    assert "gloo_sizes_differ" in ended.value.__notes__[0]


def test_ranks_that_have_all_ended_are_started_again_at_once(three):
    with pytest.raises(RankError, match="rank 0 has ended .*rank 2 has ended"):
        three.run("import os\nos._exit(3)")
    assert three.restart() == "[every rank] had ended"
    assert shown(three, "dist.barrier(); 'again'") == ["[every rank] 'again'"]
    three.end()
    with pytest.raises(RuntimeError, match="have been stopped"):
        three.restart()


def test_stop_says_what_was_not_over(all_gone):
    ranks = Ranks(2, device="cpu")
    shown(ranks, "dist.barrier()", [0])
    pids = ranks.pull("__import__('os').getpid()")
    with pytest.raises(RankError, match="rank 0 waits in barrier"):
        ranks.stop()
    assert all_gone(pids)
    with pytest.raises(RuntimeError, match="have been stopped"):
        ranks.run("1")


OWNER = """
import os, time
from shardlive import Ranks
if __name__ == "__main__":
    ranks = Ranks(2, device="cpu")
    ranks.run("dist.barrier()", [0])
    print(*ranks.pull("__import__('os').getpid()"), flush=True)
    time.sleep(600)
"""


def test_ranks_end_with_the_process_that_made_them(all_gone):
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    with owner.stdout:
        said = owner.stdout.readline()  # that rank 0 waits
        pids = list(map(int, owner.stdout.readline().split()))
        owner.kill()
    owner.wait()
    assert "rank 0 waits in barrier" in said and len(pids) == 2
    assert all_gone(pids)


@pytest.mark.parametrize("number", [0, -1, "4", 2.5])
def test_a_number_of_ranks_that_is_none_is_refused(number):
    with pytest.raises(ValueError, match="whole number"):
        Ranks(number)


@pytest.mark.parametrize("line", ["!ls", "%timeit 1 + 1"])
def test_what_is_no_python_says_so(four, line):
    with pytest.raises(RankError, match="SyntaxError: invalid syntax: a rank runs plain Python, no % and no !"):
        four.run(f"x = 1\n{line}")


def test_an_expression_is_text(four):
    with pytest.raises(TypeError, match=r'pull\("x"\), not pull\(x\)'):
        four.pull([1, 2])


def test_a_ranks_last_line_is_no_part_of_its_exit_code(three):
    three.run("print('epoch 12', flush=True)")
    with pytest.raises(RankError, match=r"rank 1 has ended \(exited with code 3; its last line: epoch 12\)"):
        three.run("import os; os._exit(3)", [1])


def test_a_rank_that_is_not_there_is_named(four):
    with pytest.raises(ValueError, match="there is no rank 4: there are ranks 0-3"):
        four.run("1", [4])


@pytest.mark.parametrize("text, ranks", [("", None), ("2", [2]), ("0,2-3", [0, 2, 3]), ("0 1", [0, 1])])
def test_ranks_are_chosen_by_numbers(text, ranks):
    assert chosen_ranks(text) == ranks


@pytest.mark.parametrize("text", ["a", "1-", "0,x", "1-2-3", "3-1", "0,2-1"])
def test_what_names_no_ranks_is_refused(text):
    with pytest.raises(ValueError, match="ranks are numbers"):
        chosen_ranks(text)
