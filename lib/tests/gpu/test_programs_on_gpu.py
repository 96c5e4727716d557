"""Every engine on stand-in GPUs: no race, no memory freed too early, and one process's losses.

torch's own engines run there, too. They are right on GPUs, so a report about them is a mistake of the stand-in's.
"""

import gpu_programs
import gpu_training
import pytest
import torch
from on_gpus import on_gpus, train
from training import train_alone, uneven

N_RANKS = dict.fromkeys(gpu_programs.PROGRAMS | gpu_programs.TORCHS, 2) | dict.fromkeys(gpu_programs.HYBRID, 4)
QUICK = ["fsdp, unshard by hand", "fsdp, CPU offload", "flat, prefetch", "ddp, host optimizer", "zero1", "zero2"]


@pytest.fixture(scope="module")
def expected() -> list[float]:
    """Losses of one process with the same global batches."""
    model = uneven(n_blocks=gpu_training.N_BLOCKS)
    return train_alone(model, torch.optim.AdamW(model.parameters(), lr=gpu_training.LR), 4, gpu_training.STEPS)


def check(name: str, by_rank: list[dict], expected: list[float]) -> None:
    tolerance = {"rel": 2e-2} if "bf16" in name else {"rel": 1e-9}
    for losses, reports in (found[name] for found in by_rank):
        assert not reports, f"{name}:\n" + "\n".join(reports)
        assert losses == pytest.approx(expected, **tolerance), name


def test_each_engine_quickly(expected):
    by_rank = on_gpus(train, 2, QUICK)
    for name in QUICK:
        check(name, by_rank, expected)


@pytest.fixture(scope="module")
def trained() -> dict[str, list[dict]]:
    """By program: what each rank found. All programs of a number of ranks run in one launch."""
    by_name = {}
    for n in (2, 4):
        names = [name for name in N_RANKS if N_RANKS[name] == n]
        by_name |= dict.fromkeys(names, on_gpus(train, n, names))
    return by_name


@pytest.mark.night
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", N_RANKS)
def test_trains_without_a_race_and_as_one_process_does(name, trained, expected):
    check(name, trained[name], expected)
