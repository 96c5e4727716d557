"""`who` draws what each rank holds: its shard, the whole, a copy, or nothing, for torch's engine and ours."""

import pytest

from shardcourse.who import who
from shardlive import RankError, Ranks

MODELS = """
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from shardlab.fsdp import fully_shard as our_fully_shard
torch.manual_seed(0)
def sharded(shard, **options):
    model = nn.Sequential(nn.Linear(8, 10), nn.Linear(10, 6))
    for layer in model:
        shard(layer, **options)
    return shard(model, **options)
theirs, ours = sharded(fully_shard), sharded(our_fully_shard);
hybrid = sharded(fully_shard, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards")));
by_columns = distribute_tensor(torch.ones(4, 8), init_device_mesh("cpu", (4,)), [Shard(1)]);
plain = torch.zeros(3, 3);
freed = torch.zeros(3); freed.untyped_storage().resize_(0);
"""


@pytest.fixture(scope="module")
def ranks():
    with Ranks(4, device="cpu") as live:
        live.run(MODELS)
        yield live


def drawn(tensor: str, ranks) -> list[tuple[str, list[float]]]:
    """(words, [left, top, width, height] of the filled box) of each rank, as shares of the frame."""
    ax = who(tensor, ranks).axes[0]
    words = [t.get_text().replace("\n", ", ") for t in ax.texts if "rank" not in t.get_text() and t.get_text()]
    frames = [p for p in ax.patches if p.get_linestyle() != "solid"]
    filled = [p for p in ax.patches if p.get_linestyle() == "solid"]

    def share(frame):
        x, y, width, height = frame.get_x(), frame.get_y(), frame.get_width(), frame.get_height()
        inside = [p for p in filled if x - 1e-9 <= p.get_x() < x + width]
        boxes = [
            ((p.get_x() - x) / width, (p.get_y() - y) / height, p.get_width() / width, p.get_height() / height)
            for p in inside
        ]
        return [round(side, 6) for box in boxes for side in box]

    return list(zip(words, map(share, frames), strict=True))


@pytest.mark.parametrize("model", ["theirs", "ours"])
def test_a_unit_is_seen_sharded_then_whole_then_sharded_again(ranks, model):
    shards = [
        ("DTensor: a shard, rows 0:3, 96 bytes", [0, 0, 1, 0.3]),
        ("DTensor: a shard, rows 3:6, 96 bytes", [0, 0.3, 1, 0.3]),
        ("DTensor: a shard, rows 6:9, 96 bytes", [0, 0.6, 1, 0.3]),
        ("DTensor: a shard, rows 9:10, 32 bytes", [0, 0.9, 1, 0.1]),
    ]
    assert drawn(f"{model}.0.weight", ranks) == shards
    ranks.run(f"{model}[0].unshard();")
    assert drawn(f"{model}.0.weight", ranks) == [("Parameter: whole, [10, 8], 320 bytes", [0, 0, 1, 1])] * 4
    ranks.run(f"{model}[0].reshard();")
    assert drawn(f"{model}.0.weight", ranks) == shards


def test_replicas_columns_plain_and_freed_tensors_and_ranks_without_rows(ranks):
    words, boxes = zip(*drawn("hybrid.0.weight", ranks), strict=True)
    assert boxes == ([0, 0, 1, 0.5], [0, 0.5, 1, 0.5]) * 2 and "rows 5:10" in words[3]
    assert drawn("by_columns", ranks)[1] == ("DTensor: a shard, columns 2:4, 32 bytes", [0.25, 0, 0.25, 1])
    assert drawn("plain", ranks)[0] == ("Tensor: whole, [3, 3], 36 bytes", [0, 0, 1, 1])
    assert drawn("freed", ranks)[2] == ("Tensor: freed", [])
    assert drawn("theirs.1.weight", ranks)[3] == ("DTensor: a shard, no rows", [])
    assert drawn("theirs.0.weight.grad", ranks)[0] == ("None", [])


def test_what_is_no_tensor_is_refused(ranks):
    with pytest.raises(RuntimeError, match="draws a tensor, not a int"):
        who("rank", ranks)
    with pytest.raises(RuntimeError, match="%ranks start"):
        who("plain")


def test_a_rank_that_has_ended_keeps_its_place():
    with Ranks(3, device="cpu") as live:
        live.run("x = torch.ones(2, 2)")
        with pytest.raises(RankError, match="rank 1 has ended"):
            live.run("import os; os._exit(3)", [1])
        words = [words for words, _ in drawn("x", live)]
        live.end()
    assert ["whole" in w for w in words] == [True, False, True] and "has ended" in words[1]
