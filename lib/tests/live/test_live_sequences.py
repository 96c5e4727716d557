"""Sequences of cells drawn by chance: the notebook is back, the ranks named are right, and no rank is left.

A model of two numbers a rank, how many collectives it has called and whether it waits in one, says what must be shown.
"""

import os
import time

import psutil
import pytest
from deadlines import deadline_s
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shardlive import RankError, Ranks
from shardlive.waiting import named

BACK_S = 2.0


class Sequences(RuleBasedStateMachine):
    """Cells on some ranks; all calls are all_reduces, in the order of their numbers."""

    @initialize(world_size=st.integers(1, 4))
    def start(self, world_size):
        self.n, self.live = world_size, Ranks(world_size, device="cpu")
        self.forget()

    def forget(self):
        self.called = [0] * self.n  # all_reduces that each rank has begun
        self.ends = dict.fromkeys(range(self.n), True)  # whether it is not waiting
        self.count = [0] * self.n  # what each rank counts in its names
        self.dead: set[int] = set()
        self.live.run("count = 0", show=lambda line: None)
        self.pids = self.live.pull("__import__('os').getpid()")

    def cell(self, source, ranks, *, fails=""):
        lines, began = [], time.monotonic()
        if fails:
            with pytest.raises(RankError, match=fails):
                self.live.run(source, ranks, show=lines.append)
        else:
            self.live.run(source, ranks, show=lines.append)
        assert time.monotonic() - began < deadline_s(BACK_S)
        return lines

    def free_ranks(self):
        return [r for r in range(self.n) if self.ends[r] and r not in self.dead]

    def draw_ranks(self, data):
        return sorted(data.draw(st.sets(st.sampled_from(self.free_ranks()), min_size=1), "ranks"))

    @precondition(lambda self: self.free_ranks())
    @rule(data=st.data())
    def counts(self, data):
        ranks = self.draw_ranks(data)
        for r in ranks:
            self.count[r] += 1
        lines = self.cell("count += 1\nprint('counted', count)\nrank", ranks)
        for r in ranks:
            assert sum(f"counted {self.count[r]}" in line for line in lines if self.names_it(line, r)) == 1
            assert any(line.split("]")[1].strip() == str(r) for line in lines if self.names_it(line, r))

    def names_it(self, line, rank):
        heads = {f"[{named(some, self.n)}]" for some in self.subsets() if rank in some}
        return any(line.startswith(head) for head in heads)

    def subsets(self):
        return [[r for r in range(self.n) if bits >> r & 1] for bits in range(1, 1 << self.n)]

    @precondition(lambda self: self.free_ranks() and not self.dead)
    @rule(data=st.data())
    def calls(self, data):
        ranks = self.draw_ranks(data)
        for r in ranks:
            self.called[r] += 1
        lines = self.cell("t = torch.ones(2) * (rank + 1); dist.all_reduce(t);", ranks)
        through = min(self.called)
        for r in range(self.n):
            self.ends[r] = self.called[r] <= through
        waiting = [r for r in range(self.n) if not self.ends[r]]
        said = [line for line in lines if "Pending" in line]
        assert bool(said) == bool(waiting)
        for line in said[:1]:
            assert line.startswith(named(waiting)), (line, waiting)
            assert f"for {named([r for r in range(self.n) if r not in waiting])}" in line

    @precondition(lambda self: self.free_ranks())
    @rule(data=st.data())
    def fails(self, data):
        [rank] = data.draw(st.sets(st.sampled_from(self.free_ranks()), min_size=1, max_size=1))
        self.cell("raise KeyError('no such')", [rank], fails=r"rank|every")

    @precondition(lambda self: self.free_ranks())
    @rule(data=st.data(), lines=st.integers(1, 3000))
    def prints(self, data, lines):
        ranks = self.draw_ranks(data)
        shown = self.cell(f"for i in range({lines}): print(i, 'x' * 80)", ranks)
        for r in ranks:
            mine = [line for line in shown if "xx" in line and self.names_it(line, r)]
            assert [int(line.split("] ")[1].split()[0]) for line in mine] == list(range(lines))

    @rule()
    def looks(self):
        there = [r for r in range(self.n) if r not in self.dead]
        assert self.live.pull("count", there) == [self.count[r] for r in there]

    @precondition(lambda self: self.n > 1 and not self.dead and all(self.ends.values()))
    @rule(data=st.data())
    def one_dies(self, data):
        rank = data.draw(st.integers(0, self.n - 1))
        self.cell("import os; os._exit(5)", [rank], fails=f"rank {rank} has ended")
        self.dead.add(rank)

    @rule()
    def restarts(self):
        self.live.restart()
        self.forget()

    @invariant()
    def only_who_waits_is_said_to_wait(self):
        if hasattr(self, "live") and all(self.ends.values()):
            assert self.live.pending == ""

    def teardown(self):
        if hasattr(self, "live"):
            self.live.end()
            assert not [pid for pid in self.pids if pid != os.getpid() and psutil.pid_exists(pid) and _lives(pid)]


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def few(examples: int, steps: int):
    case = type(f"Few{examples}", (Sequences,), {}).TestCase
    case.settings = settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
    )
    return case


class TestAFewSequences(few(3, 8)):
    """By day."""


@pytest.mark.night
@pytest.mark.timeout(1200)
class TestManySequences(few(60, 20)):
    """By night."""
