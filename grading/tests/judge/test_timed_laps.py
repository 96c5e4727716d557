"""Races with ranks: who is slow fails whatever it does meanwhile, and who hangs holds nobody up."""

import os
import time
from unittest.mock import patch

import cloudpickle
import pytest
from submissions import LAB

from grading.boxes.answers_folder_and_output_limits import ANSWERS
from grading.boxes.sandbox import Bubblewrap
from grading.judge.judge_answers import Referee
from grading.samples.sample import samples
from grading.samples.trial import run_cells

CHECK = "lab2.throughput"
pytestmark = pytest.mark.night

BURNS = """if True:
    import mmap, os, struct, time

    class DDP(TokenDDP):
        '''A late step, and a process that takes the processor from whoever computes while these ranks wait.'''

        def __init__(self, module, bucket_cap_mb):
            super().__init__(module, bucket_cap_mb=bucket_cap_mb)
            self.last = mmap.mmap(-1, 8)
            self.last[:] = struct.pack('d', time.monotonic())
            if os.fork() == 0:
                while True:
                    if time.monotonic() - struct.unpack('d', self.last[:])[0] > 0.15:
                        sum(range(20000))
                    else:
                        time.sleep(0.001)

        def forward(self, *args):
            self.last[:] = struct.pack('d', time.monotonic())
            time.sleep(0.04)
            return super().forward(*args)
    """
HANGS = """if True:
    import time

    class DDP(TokenDDP):
        steps = 0

        def forward(self, *args):
            self.steps += 1
            if self.steps > 14:
                time.sleep(1000)
            return super().forward(*args)
    """
IDLES = """if True:
    import torch.distributed as dist

    class DDP(TokenDDP):
        '''Works in the laps of the warm-up, whose proof is asked for in any case, and is very fast afterwards.'''

        steps = 0

        def forward(self, *args):
            self.steps += 1
            if self.steps > 3:
                return sum(p.sum() for p in self.parameters()) * 0
            return super().forward(*args)
    """


def answer(source: str, folder) -> bytes:
    """The solution's class, spoilt."""
    with patch.dict(os.environ, {ANSWERS: str(folder)}):
        names = run_cells(next(s for s in samples(LAB) if s.name == "right").notebook())
    exec(source, names)
    return cloudpickle.dumps(names["DDP"])


@pytest.mark.skipif(bool(Bubblewrap.obstacle()), reason=f"needs a real box: {Bubblewrap.obstacle()}")
def test_who_burns_the_time_of_the_reference_gains_nothing(tmp_path):
    with Referee(LAB, tier="cpu") as referee:
        verdict = referee.judge({CHECK: answer(BURNS, tmp_path)}, only=CHECK)[0]
    assert verdict.points == 0, verdict.text()
    assert "times as long as with torch's DDP" in verdict.cause, verdict.text()


def test_who_works_in_the_warm_up_alone_never_passes(tmp_path):
    with Referee(LAB, tier="cpu") as referee:
        verdicts = [referee.judge({CHECK: answer(IDLES, tmp_path)}, only=CHECK)[0] for _ in range(3)]
    assert [v.points for v in verdicts] == [0] * 3, verdicts[0].text()


def test_a_lap_that_hangs_ends_the_race(tmp_path, monkeypatch):
    monkeypatch.setattr("grading.judge.timed_laps.SHORTEST_DEADLINE_S", 3.0)
    with Referee(LAB, tier="cpu") as referee:
        began = time.monotonic()
        verdict = referee.judge({CHECK: answer(HANGS, tmp_path)}, only=CHECK)[0]
        assert time.monotonic() - began < 60
        assert verdict.points == 0
        assert not verdict.inconclusive
        assert "a rank did not end its lap in time" in verdict.text()
        assert referee.judge({CHECK: answer("DDP = TokenDDP", tmp_path)}, only=CHECK)[0].points > 0
