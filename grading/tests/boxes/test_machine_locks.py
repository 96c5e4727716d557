"""Leases: nobody has what another has, nobody waits for ever, and the dead give back."""

import os
import subprocess
import sys
import tempfile
import threading
import time

import fake_nvidia_smi
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


def leased(tier: str, monkeypatch, n_cards: int = 8, shown: str = ""):
    """The lease, and what later processes see."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    monkeypatch.setattr("torch.cuda.device_count", lambda: n_cards)
    return gpus_for(TIERS[tier]), os.environ["CUDA_VISIBLE_DEVICES"]


@pytest.mark.parametrize(("tier", "seen"), [("cpu", ""), ("gpu1", "0"), ("gpu4", "0,1,2,3")])
def test_a_tier_sees_the_gpus_that_its_ranks_use_and_no_others(tier, seen, monkeypatch):
    """By number, where there is no nvidia-smi to ask."""
    monkeypatch.setenv("PATH", "/nowhere")
    gpus, now_seen = leased(tier, monkeypatch)
    assert now_seen == seen
    if gpus:
        gpus.close()


@pytest.mark.parametrize("n_cards", [2, 3])
def test_ranks_that_are_spread_over_few_gpus_have_them_all(n_cards, tmp_path, monkeypatch):
    """Without the others' lease, the next submission's ranks would be on the same cards."""
    fake_nvidia_smi.install(tmp_path / "bin", monkeypatch, {"uuid": "GPU-aa\nGPU-bb\nGPU-cc\n"})
    gpus, seen = leased("gpu1", monkeypatch, n_cards)
    assert seen.split(",") == gpus.names == ["GPU-aa", "GPU-bb", "GPU-cc"][:n_cards]
    gpus.close()
    with pytest.raises(ValueError, match=f"4 GPUs are needed, and this machine has {n_cards}"):
        leased("gpu4", monkeypatch, n_cards)


def job(tmp_path, monkeypatch, cards: list[str], shown: str = "") -> Gpus:
    """Lease a card as a job of Slurm would that sees only `cards`, which it counts from 0."""
    fake_nvidia_smi.install(tmp_path / "bin", monkeypatch, {"uuid": "\n".join(cards)})
    return leased("gpu1", monkeypatch, len(cards), shown)[0]


def test_jobs_that_each_count_their_gpus_from_0_take_turns_only_for_the_same(tmp_path, monkeypatch):
    first = job(tmp_path, monkeypatch, ["GPU-aa"])
    other = job(tmp_path, monkeypatch, ["GPU-bb"], shown="0")
    assert (first.names, other.names) == (["GPU-aa"], ["GPU-bb"])
    same: list[Gpus] = []
    waiting = threading.Thread(
        target=lambda: same.append(job(tmp_path, monkeypatch, ["GPU-aa"], shown="0")), daemon=True
    )
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive()
    first.close()
    waiting.join(10)
    assert same[0].names == ["GPU-aa"]
    for lease in (*same, other):
        lease.close()


@pytest.mark.parametrize("shown", ["1", "GPU-bb-2222", "GPU-bb", " 1"])
def test_however_a_gpu_is_named_its_lease_is_the_same(shown, tmp_path, monkeypatch):
    gpus = job(tmp_path, monkeypatch, ["GPU-aa-1111", "GPU-bb-2222"], shown)
    assert gpus.names == ["GPU-bb-2222"]
    gpus.close()


def test_a_part_of_a_gpu_keeps_its_own_name(tmp_path, monkeypatch):
    gpus = job(tmp_path, monkeypatch, ["GPU-aa-1111"], shown="MIG-5c89")
    assert gpus.names == ["MIG-5c89"]
    gpus.close()


def test_amds_own_variable_is_the_one_that_is_narrowed(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "4,5,6,7")
    monkeypatch.setattr("torch.version.hip", "6.4")
    gpus, seen = leased("gpu1", monkeypatch)
    assert (os.environ["HIP_VISIBLE_DEVICES"], seen) == ("4", "")
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
