"""Sequences of cells drawn by chance: the notebook is back, the ranks named are right, and no rank is left.

A model of each rank, how many collectives it has called in each group and whether it waits in one, says what must be
shown. Some ranks may leave a call with a root before all have come. Which ones, gloo decides: the model asks the rank.
"""

import os
import signal
import threading
import time

import psutil
import pytest
from deadlines import deadline_s
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shardlab.launch.hang_report import named
from shardlive import RankError, Ranks

BACK_S = 2.0
CALLS = """
import os, time
pair = dist.new_group([0, world_size - 1]) if world_size > 2 else None
def call(kind, group, root, pause):
    time.sleep(pause)
    t, n = torch.ones(2 * world_size) * (rank + 1), dist.get_world_size(group)
    parts = [torch.empty_like(t) for _ in range(n)]
    match kind:
        case "all_reduce":
            dist.all_reduce(t, group=group)
        case "barrier":
            dist.barrier(group)
        case "all_gather":
            dist.all_gather(parts, t, group=group)
        case "reduce_scatter":
            dist.reduce_scatter(torch.empty(2), list(torch.ones(n, 2)), group=group)
        case "all_to_all":
            dist.all_to_all_single(torch.empty(2 * n), torch.ones(2 * n), group=group)
        case "broadcast":
            dist.broadcast(t, root, group)
        case "reduce":
            dist.reduce(t, root, group=group)
        case "gather":
            dist.gather(t, parts if rank == root else None, root, group)
        case "scatter":
            dist.scatter(t, parts if rank == root else None, root, group)
count = 0;
"""
ROOTED = ("broadcast", "reduce", "gather", "scatter")
KINDS = ("all_reduce", "barrier", "all_gather", "reduce_scatter", "all_to_all", *ROOTED)


class Sequences(RuleBasedStateMachine):
    """Cells on some ranks, which call collectives of the whole job and of a pair of ranks in one order."""

    @initialize(world_size=st.integers(1, 4))
    def start(self, world_size):
        self.n, self.live = world_size, Ranks(world_size, device="cpu")
        self.forget()

    def forget(self):
        self.members = {"None": list(range(self.n))} | ({"pair": [0, self.n - 1]} if self.n > 2 else {})
        self.kinds: dict[str, list[str]] = {group: [] for group in self.members}  # of each call
        self.called = {group: dict.fromkeys(ranks, 0) for group, ranks in self.members.items()}  # by each rank
        self.waits_in: dict[int, tuple[str, int]] = {}  # the group and number of the call in which a rank waits
        self.count = [0] * self.n  # what each rank counts in its names
        self.dead: set[int] = set()
        self.live.run(CALLS, show=lambda line: None)
        self.pids = self.live.pull("os.getpid()")

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
        return [r for r in range(self.n) if r not in self.waits_in and r not in self.dead]

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
        heads = {f"[{named(some)}]" for some in self.subsets() if rank in some} | {"[every rank]"}
        return any(line.startswith(head) for head in heads)

    def subsets(self):
        return [[r for r in range(self.n) if bits >> r & 1] for bits in range(1, 1 << self.n)]

    @precondition(lambda self: self.free_ranks() and not self.dead)
    @rule(data=st.data())
    def calls(self, data):
        ranks = self.draw_ranks(data)
        plan = {}
        for r in ranks:
            group = data.draw(st.sampled_from([g for g, members in self.members.items() if r in members]), "group")
            if len(self.kinds[group]) == self.called[group][r]:
                self.kinds[group].append(data.draw(st.sampled_from(KINDS), "kind"))
            number = self.called[group][r]
            plan[r] = (self.kinds[group][number], group, self.root(group, number))
            self.called[group][r] += 1
            self.waits_in[r] = group, number
        pause, late = data.draw(st.sampled_from([0, 0, 0.4]), "pause"), data.draw(st.sampled_from(ranks), "late")
        calls = ", ".join(f"{r}: {(*call, pause * (r == late))}" for r, call in plan.items())
        calls = calls.replace("'None'", "None").replace("'pair'", "pair")
        self.says_who_waits(self.cell(f"call(*{{{calls}}}[rank])", ranks))

    def root(self, group, number):
        return self.members[group][number % len(self.members[group])]

    def missing(self, group, number):
        return [r for r in self.members[group] if self.called[group][r] <= number]

    def some_are_through(self):
        """A call with a root may end on a rank before all have made it, but not before those that it needs."""
        self.live._job.listen(0)
        for r, (group, number) in list(self.waits_in.items()):
            kind, root, missing = self.kinds[group][number], self.root(group, number), self.missing(group, number)
            end = time.monotonic() + deadline_s(BACK_S)
            while not missing and self.live._job.ranks[r].is_busy and time.monotonic() < end:
                self.live._job.listen(0.05)
            is_busy = self.live._job.ranks[r].is_busy
            assert missing or not is_busy, (kind, r, root)
            if missing and root in (r, *missing) and (r == root) == (kind in ("reduce", "gather")):
                assert is_busy, (kind, r, root)
            if not missing or (kind in ROOTED and not is_busy):
                del self.waits_in[r]

    def says_who_waits(self, lines):
        """The words name, for each call that some wait in, these ranks and those that are missing."""
        self.some_are_through()
        said = [line for line in "\n".join(lines).split("\n") if " wait in " in line or " waits in " in line]
        assert len(said) == len(set(self.waits_in.values())), (lines, self.waits_in)
        for group, number in set(self.waits_in.values()):
            waiting = [r for r in self.members[group] if self.waits_in.get(r) == (group, number)]
            missing = named(self.missing(group, number))
            [mine] = [line for line in said if line.startswith(f"{named(waiting)} wait")]
            assert f" in {self.kinds[group][number]}" in mine, (mine, self.kinds[group][number])
            assert f", for {missing}. Pending" in mine or f", for {missing}: " in mine, (mine, missing)

    @precondition(lambda self: len(self.free_ranks()) > 1 and not self.dead)
    @rule(data=st.data())
    def sends(self, data):
        sender, receiver = data.draw(st.permutations(self.free_ranks()), "from and to")[:2]
        halves = [(sender, f"dist.send(torch.full((2,), 7), {receiver})")]
        halves.append((receiver, f"t = torch.zeros(2, dtype=torch.int64)\ndist.recv(t, {sender})"))
        (first, half), (second, rest) = data.draw(st.permutations(halves), "in this order")
        lines = self.cell(half, [first])
        assert f"rank {first} waits at line " in "\n".join(lines)
        self.says_who_waits(lines)
        self.says_who_waits(self.cell(rest, [second]))
        assert self.live.pull("t.tolist()", [receiver]) == [[7, 7]]

    @precondition(lambda self: self.free_ranks())
    @rule(data=st.data())
    def fails(self, data):
        [rank] = data.draw(st.sets(st.sampled_from(self.free_ranks()), min_size=1, max_size=1))
        self.cell("raise KeyError('no such')", [rank], fails=r"rank|every")

    @precondition(lambda self: self.free_ranks())
    @rule(data=st.data(), lines=st.integers(1, 12_000))
    def prints(self, data, lines):
        ranks = self.draw_ranks(data)
        shown = self.cell(f"for i in range({lines}): print(i, 'x' * 80)", ranks)
        for r in ranks:
            mine = [line for line in shown if "xx" in line and self.names_it(line, r)]
            assert [int(line.split("] ")[1].split()[0]) for line in mine] == list(range(lines))

    @precondition(lambda self: self.free_ranks())
    @rule(data=st.data())
    def is_interrupted(self, data):
        ranks, at = self.draw_ranks(data), []

        def press():
            at.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        threading.Timer(0.3, press).start()
        with pytest.raises(KeyboardInterrupt):
            self.live.run("time.sleep(60)", ranks, show=lambda line: None)
        assert time.monotonic() - at[0] < deadline_s(BACK_S)

    @rule()
    def looks(self):
        there = [r for r in range(self.n) if r not in self.dead]
        assert self.live.pull("count", there) == [self.count[r] for r in there]

    @precondition(lambda self: self.n > 1 and not self.dead and not self.waits_in)
    @rule(data=st.data(), way=st.sampled_from(["os._exit(5)", "os.kill(os.getpid(), 9)"]))
    def one_dies(self, data, way):
        rank = data.draw(st.integers(0, self.n - 1))
        self.cell(way, [rank], fails=f"rank {rank} has ended")
        self.dead.add(rank)

    @rule()
    def restarts(self):
        self.live.restart()
        self.forget()

    @invariant()
    def only_who_waits_is_said_to_wait(self):
        if hasattr(self, "live"):
            self.says_who_waits(self.live.pending.splitlines())

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
