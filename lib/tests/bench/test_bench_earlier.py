"""Engines beside themselves at this commit: the two are other packages, and cost the same."""

import pytest

from shardbench import earlier

pytestmark = pytest.mark.night


def test_an_engine_beside_itself(capsys):
    result = earlier.run("HEAD", engines=("ZeRO-2",), model="1M", pairs=2, world_size=2, micro_batch=1, seq_len=16)
    (row,) = result["rows"]
    assert row["now"] == row["then"] | {"broken": row["now"]["broken"]}
    assert row["now"]["wire_bytes"] > 0 < row["now"]["peak_bytes"]
    assert row["max_loss_difference"] == 0
    assert row["time"]["pairs"] == 2
    earlier.show(result)
    assert "ZeRO-2" in capsys.readouterr().out


def test_the_earlier_engine_is_the_earlier_one(tmp_path):
    earlier._unpack("HEAD", tmp_path)
    zero = tmp_path / "lib" / "earlier_shardlab" / "zero"
    assert zero.is_dir()
    assert "from shardlab" not in "".join(file.read_text() for file in zero.glob("*.py"))
