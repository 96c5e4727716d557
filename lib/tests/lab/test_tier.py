"""Which tier follows from a machine's GPUs, what it leaves idle, and why it is refused. The GPUs are made up."""

import json
from types import SimpleNamespace

import pytest
import torch

from shardlab import tier as tier_file
from shardlab.tier import GIB, TIERS, Card, choose, detect, precision, why_not

T4 = Card("Tesla T4", int(14.74 * GIB), (7, 5))
L4 = Card("NVIDIA L4", int(22.03 * GIB), (8, 9))
A100 = Card("NVIDIA A100-SXM4-40GB", int(39.39 * GIB), (8, 0))
H100 = Card("NVIDIA H100 80GB HBM3", int(79.1 * GIB), (9, 0))
SMALL = Card("GeForce RTX 2070", int(7.79 * GIB), (7, 5))


@pytest.fixture
def here(monkeypatch):
    """Return a function that puts cards into this machine, as torch reports them."""

    def put(*cards: Card) -> None:
        def properties(i: int):
            card = cards[i]
            major, minor = card.capability
            return SimpleNamespace(name=card.name, total_memory=card.memory_bytes, major=major, minor=minor)

        monkeypatch.delenv("SHARDLAB_TIER", raising=False)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(cards))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(cards))
        monkeypatch.setattr(torch.cuda, "get_device_properties", properties)

    return put


@pytest.mark.parametrize(
    ("cards", "name", "words"),
    [
        ([], "cpu", ""),
        ([T4], "gpu1", ""),
        ([T4, T4], "gpu2", ""),
        ([T4] * 3, "gpu2", "tier 'gpu2' leaves 1 of 3 GPUs idle"),
        ([L4] * 4, "gpu4-16gb", ""),
        ([A100] * 4, "gpu4", ""),
        ([H100] * 6, "gpu4", "tier 'gpu4' leaves 2 of 6 GPUs idle"),
        ([H100] * 8, "gpu8", ""),
        ([L4] * 8, "gpu8-16gb", ""),
        ([H100] * 7 + [T4], "gpu8-16gb", ""),
        ([SMALL], "cpu", "tier 'cpu' leaves 1 of 1 GPUs idle: tier 'gpu1' needs"),
        ([SMALL] * 4, "gpu4-16gb", ""),
    ],
)
def test_the_largest_tier_that_fits(cards, name, words, here, capsys):
    here(*cards)
    assert detect().name == name
    printed = capsys.readouterr().out
    assert printed.startswith(words) and bool(printed) == bool(words)


def test_a_tier_that_can_not_fit_is_refused_with_the_reason(here):
    here(T4, T4, T4, T4)
    with pytest.raises(RuntimeError, match=r"tier 'gpu4' needs 34\.\d GiB .* GPU 0, Tesla T4, has 14\.7; use .*16gb'"):
        detect("gpu4")
    with pytest.raises(RuntimeError, match="'gpu8' needs 8 GPUs, and torch sees 4"):
        detect("gpu8")
    here(SMALL)
    with pytest.raises(RuntimeError, match="'gpu1' needs .* for its ranks together, .* use tier='cpu'"):
        detect("gpu1")
    here()
    with pytest.raises(RuntimeError, match="'gpu1' needs a GPU and torch sees none; use tier='cpu'"):
        detect("gpu1")


def test_a_tier_looks_at_the_gpus_that_it_uses_and_at_no_others():
    assert why_not(TIERS["gpu2"], [H100, H100, SMALL]) == ""
    assert "GPU 1" in why_not(TIERS["gpu4"], [H100, T4, H100, H100])


def test_a_cpu_tier_does_not_ask_for_gpus(monkeypatch):
    """To ask starts CUDA in this process."""
    monkeypatch.setattr(tier_file, "cards_here", lambda: pytest.fail("asked"))
    assert detect("cpu").name == "cpu"
    monkeypatch.setenv("SHARDLAB_TIER", "cpu8")
    assert detect().name == "cpu8"


def test_precision_follows_from_the_compute_capability():
    assert precision([H100, L4]) == "bf16"
    assert precision([H100, T4]).startswith("fp16, with loss scaling: Tesla T4 emulates bf16")


def test_idle_gpus_are_counted():
    assert choose([T4, T4, T4]) == ("gpu2", "tier 'gpu2' leaves 1 of 3 GPUs idle")


def test_the_table_has_every_gpu_tier():
    rows = json.loads((tier_file.Path(tier_file.__file__).with_name(tier_file.TABLE)).read_text())["tiers"]
    assert list(rows) == [t.name for t in TIERS.values() if t.gpus]
    for name, row in rows.items():
        assert (TIERS[name].gpus, TIERS[name].device) == (row["gpus"], "cuda") and int(name[3]) == row["gpus"]
