"""Leases: nobody has what another has, nobody waits for ever, and the dead give back."""

import os
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from grading.boxes.machine_locks import Gpus, gpus_for, quiet
from shardlab.tier import TIERS

GPUS = ["0", "1", "2", "3"]


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_two_have_different_gpus_and_a_third_waits_until_one_is_done():
    first, second = Gpus(GPUS, 2), Gpus(GPUS, 2)
    assert sorted(first.names + second.names) == GPUS
    third: list[Gpus] = []
    waiting = threading.Thread(target=lambda: third.append(Gpus(GPUS, 2)))
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    first.close()
    waiting.join(10)
    assert third[0].names == first.names
    second.close()
    third[0].close()


def test_who_finds_too_few_takes_none():
    first = Gpus(GPUS, 3)
    waiting = threading.Thread(target=lambda: Gpus(GPUS, 2).close())
    waiting.start()
    assert Gpus(GPUS, 1).names == ["3"]
    first.close()
    waiting.join(10)
    assert not waiting.is_alive()


def test_a_dead_grader_gives_its_gpus_back(machine):
    source = "import os; from grading.boxes.machine_locks import Gpus; kept = Gpus(['0'], 1); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", source], env={"TMPDIR": str(machine), "USER": "x"}, check=False)
    Gpus(["0"], 1).close()


def test_more_than_there_are_is_an_error():
    with pytest.raises(ValueError, match="5 GPUs are needed, and this machine has 4"):
        Gpus(GPUS, 5)


@pytest.mark.parametrize(("tier", "seen"), [("cpu", ""), ("gpu1", "0"), ("gpu4", "0,1,2,3")])
def test_a_tier_sees_the_gpus_that_its_ranks_use_and_no_others(tier, seen, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    gpus = gpus_for(TIERS[tier])
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == seen
    if gpus:
        gpus.close()


def test_one_race_at_a_time():
    at_once, most = 0, 0

    def race():
        nonlocal at_once, most
        with quiet():
            at_once += 1
            most = max(most, at_once)
            time.sleep(0.05)
            at_once -= 1

    races = [threading.Thread(target=race) for _ in range(5)]
    for thread in races:
        thread.start()
    for thread in races:
        thread.join()
    assert most == 1
