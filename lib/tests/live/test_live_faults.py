"""Live ranks and cells that go wrong in rare ways: nothing hangs, nothing is lost, no rank is left."""

import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from deadlines import deadline_s
from test_live import interrupted, shown

from shardlab.launch.link_error_to_explanation import explained
from shardlive import RankError, Ranks, session
from shardlive.live_job import LiveRank
from shardwhy.literals import literals

NEVER_STOPS = """
import time
while True:
    try:
        time.sleep(0.1)
    except BaseException:
        pass"""


def test_a_rank_that_does_not_stop_is_named_and_holds_up_no_other(three):
    lines, seconds = interrupted(three, NEVER_STOPS, 1.0, [1])
    assert seconds < deadline_s(2)
    assert re.fullmatch("rank 1 still computes, line [3-7]: .*: wait, or restart.", lines[-1])
    assert lines[-1].split(",")[0] in three.pending
    began = time.monotonic()
    said = shown(three, "rank", [0, 2])
    assert said[:2] == ["[rank 0] 0", "[rank 2] 2"] and said[2].startswith("rank 1 still computes")
    said = shown(three, "dist.barrier()", [0])[0].splitlines()
    assert said[0].startswith("rank 0 waits in barrier") and "rank 1 must leave another call first" in said[0]
    assert said[1].startswith("rank 1 still computes")
    assert time.monotonic() - began < deadline_s(2)
    with pytest.raises(ValueError, match="ranks 0, 1 did not end an earlier cell. rank 0 waits in barrier"):
        three.run("1", [0, 1])
    with pytest.raises(RankError, match="rank 1 still computes"):
        three.stop()


def test_only_what_waits_was_pending_when_ranks_are_started_again(three):
    interrupted(three, NEVER_STOPS, 1.0, [1])
    assert three.restart() == "[rank 1] lost: time"


def test_a_rank_that_does_not_answer_is_said_to_compute(three):
    lines, _ = interrupted(three, "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", 1.0, [1])
    assert lines[-1] == "rank 1 still computes, and does not say where: wait, or restart."
    assert shown(three, "rank", [2])[0] == "[rank 2] 2"


def test_a_rank_that_does_not_answer_delays_no_restart(three, monkeypatch):
    """The others tell which names they lose, also one that takes longer than a mute rank is waited for."""
    monkeypatch.setattr(session, "_LONG_S", 2 * deadline_s(6))  # on a busy machine, too, more than is allowed
    shown(three, "class Slow:\n    def __repr__(self): return str(__import__('time').sleep(2))\nslow = Slow()", [2])
    os.kill(three.pull("__import__('os').getpid()")[1], signal.SIGSTOP)
    began = time.monotonic()
    words = ["[rank 1] lost: all its names; it did not say which", "[rank 2] lost: Slow, slow"]
    assert three.restart().splitlines() == words
    assert time.monotonic() - began < deadline_s(6)
    assert shown(three, "rank") == ["[rank 0] 0", "[rank 1] 1", "[rank 2] 2"]


FORKS = """
import os, sys, time
child = os.fork()
if child == 0:
    {}
else:
    end = time.monotonic() + 5
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < end:
        time.sleep(0.01)
child and (os.waitstatus_to_exitcode(ended[1]) if ended[0] else "is there")
"""


@pytest.mark.parametrize(
    ("what", "status", "said"),
    [
        ("print('child')", 0, "child"),
        ("sys.exit(0)", 0, ""),
        ("sys.exit(3)", 1, ""),
        ("1 / 0", 1, "ZeroDivisionError: division by zero"),
        ("os._exit(2)", 2, ""),
    ],
)
def test_a_process_that_a_cell_forks_ends_with_the_cell_and_does_not_answer_as_the_rank(three, what, status, said):
    lines = shown(three, FORKS.format(what), [1])
    assert lines[-1] == f"[rank 1] {status}"
    assert lines[-2:-1] == [f"[rank 1] {said}"] * bool(said)
    assert shown(three, "rank") == ["[rank 0] 0", "[rank 1] 1", "[rank 2] 2"]


def test_a_process_that_a_cell_forks_and_that_goes_on_ends_with_the_ranks(three, all_gone):
    shown(three, "import os, time\nchild = os.fork() or time.sleep(600)", [1, 2])
    children = three.pull("child", [1, 2])
    with pytest.raises(RankError, match=r"rank 2 has ended \(exited with code 7"):
        three.run("os._exit(7)", [2])
    three.end()
    assert all_gone(children)


NO_WORDS = """
class NoWords(Exception):
    def __str__(self):
        raise ValueError("none")
raise NoWords"""


@pytest.mark.parametrize(
    ("cell", "words"),
    [(NO_WORDS, "NoWords"), ("import os; os.close(1); 1 / 0", "ZeroDivision"), ("sys.stdout = None; 1 / 0", "ZeroDi")],
)
def test_a_cell_that_breaks_its_own_words_or_streams_ends_and_the_rank_goes_on(three, cell, words):
    with pytest.raises(RankError, match=rf"\[rank 1\] {words}"):
        three.run(f"import sys\n{cell}", [1])
    assert shown(three, "rank") == ["[rank 0] 0", "[rank 1] 1", "[rank 2] 2"]


def test_a_value_that_ends_its_thread_is_an_error(four):
    with pytest.raises(RankError, match=r"\[every rank\] SystemExit"):
        four.pull("exit()")


def test_a_long_value_and_a_long_error_are_cut(four):
    [line] = shown(four, "'z' * 1_000_000", [1])
    assert line.startswith("[rank 1] 'zzz") and " ... 990,002 more characters ... z" in line and len(line) < 11_000
    assert len(four.pull("'z' * 1_000_000", [1])[0]) == 1_000_000
    with pytest.raises(RankError) as told:
        four.run("raise ValueError('z' * 1_000_000)", [1])
    assert 10_000 < len(str(told.value)) < 21_000


def test_an_interrupt_while_ranks_are_ended_leaves_none(all_gone, monkeypatch):
    """A notebook has threads of its own, which take the signal; Python still interrupts the main one."""
    ranks, over, kill = Ranks(3, device="cpu"), threading.Event(), LiveRank.kill
    pids = ranks.pull("__import__('os').getpid()")

    def interrupted_kill(rank: LiveRank) -> None:
        if rank.number == 0 and not over.is_set():
            over.set()
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
        kill(rank)

    monkeypatch.setattr(LiveRank, "kill", interrupted_kill)
    other = threading.Thread(target=over.wait)
    other.start()
    threading.Thread(target=time.sleep, args=(1.0,), daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        ranks.end()
    other.join()
    assert all_gone(pids)


ENDS_AT_ONCE = """
import threading, time
import shardlive.session
def slowly(error):
    threading.main_thread().join()
    time.sleep(0.5)
    print("read")
shardlive.session.explained = slowly
if __name__ == "__main__":
    shardlive.session.Ranks(1, device="cpu").stop()
"""


def test_python_does_not_end_while_the_index_of_messages_is_read():
    done = subprocess.run([sys.executable, "-c", ENDS_AT_ONCE], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("read\n", "")


FORGETS_TO_STOP = """
import weakref
class Early: pass
early = Early()
end = weakref.finalize(early, print, "the end")  # so Python calls finalizers after multiprocessing's end
from shardlive import Ranks
if __name__ == "__main__":
    ranks = Ranks(2, device="cpu")
    print(*ranks.pull("__import__('os').getpid()"))
"""


def test_python_ends_and_no_rank_stays_if_nobody_stops_them(all_gone):
    command = [sys.executable, "-c", FORGETS_TO_STOP]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=deadline_s(20))
    pids, end = done.stdout.splitlines()
    assert end == "the end" and done.stderr == ""
    assert all_gone(list(map(int, pids.split())))


def test_the_index_of_messages_is_read_while_ranks_start_and_an_error_takes_no_longer_than_a_cell(monkeypatch):
    readers = []
    monkeypatch.setattr("shardlive.session.explained", lambda error: readers.append(threading.current_thread()))
    with Ranks(1, device="cpu"):
        assert readers and readers[0] is not threading.main_thread()
    explained(RuntimeError("an error"))
    before = literals.cache_info()
    explained(RuntimeError("another error"))
    assert literals.cache_info().misses == before.misses and literals.cache_info().hits > before.hits
