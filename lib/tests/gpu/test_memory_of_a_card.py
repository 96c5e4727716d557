"""What `MemoryTracker` reads of a card, from a driver that says what it is told to say."""

import pytest
import torch
from torch import nn

from shardlab.measure.memory import MemoryTracker

MIB = 1 << 20
SAID = {
    "reset_peak_memory_stats": None,
    "max_memory_allocated": 30 * MIB,
    "max_memory_reserved": 50 * MIB,
    "memory_reserved": 40 * MIB,
    "mem_get_info": (600 * MIB, 1000 * MIB),  # free, total
}


@pytest.mark.parametrize(
    ("n_cards", "n_ranks", "outside"),
    [(1, None, 360 * MIB), (1, 1, 360 * MIB), (4, 4, 360 * MIB), (1, 4, None), (2, 4, None), (3, 4, None)],
)
def test_what_is_outside_the_allocator_is_known_only_of_a_card_of_ones_own(n_cards, n_ranks, outside, monkeypatch):
    """The driver counts all processes together: with four ranks on a card, a rank's share of it can't be told."""
    for name, value in SAID.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_cards)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(n_ranks)) if n_ranks else monkeypatch.delenv("LOCAL_WORLD_SIZE", False)
    with MemoryTracker(nn.Linear(1, 1), device="cuda") as memory:
        pass
    assert memory.peak.cuda_outside_bytes == outside
    assert memory.peak.cuda_reserved_bytes == 50 * MIB
