"""One script in several systems: each holds and sends what its formulas say, and one that does not is seen."""

import pytest
from torch import nn

from shardbench.engines import TORCH, Engine, data_parallel
from shardcourse.experiments import one_script


def not_accelerate(model: nn.Module) -> Engine:
    """Accelerate's row, for a plugin that was not passed on."""
    return data_parallel(TORCH, model)


def test_each_system_holds_and_sends_what_is_expected(monkeypatch):
    monkeypatch.setattr(one_script, "installed", lambda name: name == "accelerate")
    systems = one_script.systems(not_accelerate)
    assert list(systems) == ["DDP", "DDP + ZeRO-1", "FSDP1", "FSDP2", "our FSDP2", "Accelerate"]
    expected, found = one_script.expected(systems, 2), one_script.compare(systems, 2, "cpu")
    for name in ("DDP", "FSDP1", "FSDP2", "our FSDP2"):
        assert (found[name].held_bytes, found[name].sent_bytes) == pytest.approx(expected[name], rel=0.01)
    assert all(f.losses == pytest.approx(found["DDP"].losses, abs=2e-4) for f in found.values())
    assert found["Accelerate"].held_bytes > 1.9 * expected["Accelerate"][0], "it does not shard"
    assert (found["FSDP2"].parameter_kind, found["Accelerate"].parameter_kind) == ("DTensor", "Parameter")


def test_the_record_of_deepspeed_has_its_stages():
    where, rows = one_script.deepspeed_record()
    assert "ranks" in where
    assert {f"DeepSpeed stage {i}" for i in range(4)} <= {name for name, *_ in rows}
    assert all(held > 0 and sent > 0 for _, held, sent, _ in rows)
