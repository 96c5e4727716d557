"""The widgets without a browser: what they show is what the library says. (`test_plan_widget` has the planner.)"""

import threading
import time
from functools import partial

import pytest
import torch
from deadlines import deadline_s
from matplotlib.colors import to_rgba
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from shardcourse.widgets import BucketSlider, ShardingExplorer, sharding_picture, sharding_record
from shardcourse.widgets.sharding_picture import sharding
from shardcourse.widgets.sharding_record import WORLD_SIZE, Held, layout, record
from shardlab import launch

N = WORLD_SIZE
KEPT = "before the step"

# -------------------------------------------------------------------------------------------------------- bucket slider


def settle(slider: BucketSlider) -> None:
    deadline = time.monotonic() + deadline_s(20)
    while slider._busy and time.monotonic() < deadline:
        time.sleep(0.005)
    assert not slider._busy


def test_the_bucket_slider_keeps_its_points_and_leaves_out_what_nobody_waits_for():
    """While it measures, the control moves over three sizes: the last of them counts."""
    asked, go_on = [], threading.Event()

    def measure(cap_mb: float) -> list[float]:
        asked.append(cap_mb)
        if len(asked) > 1:
            go_on.wait(10)
        return [cap_mb, 2 * cap_mb]

    slider = BucketSlider(measure, {cap: cap for cap in (1, 2, 4, 8, 16)}, first_mb=1)
    assert slider.points == {1: [1, 2]}
    for cap in (2, 4, 8, 16):
        slider.cap.value = cap
        while len(asked) == 1:
            time.sleep(0.001)
    go_on.set()
    settle(slider)
    assert asked == [1, 2, 16]
    slider.again.click()
    settle(slider)
    assert slider.points == {1: [1, 2], 2: [2, 4], 16: [16, 32, 16, 32]}
    assert "Least so far: 1000 ms at 1 MiB, of 3 measured" in slider.message


def test_what_fails_is_told_and_takes_nothing_away():
    def measure(cap_mb: float) -> list[float]:
        if cap_mb == 2:
            raise RuntimeError("rank 3 is gone <&>")
        return [cap_mb]

    slider = BucketSlider(measure, {1: 3.0, 2: 1.0, 4: 2.0}, first_mb=2)
    assert slider.message == "bucket_cap_mb = 2 failed. RuntimeError: rank 3 is gone <&>"
    assert 'role="alert"' in slider._words.value and "&lt;&amp;&gt;" in slider._words.value
    slider.cap.value = 4
    settle(slider)
    slider.cap.value = 2
    settle(slider)
    assert slider.points == {4: [4]} and "failed" in slider.message


# ---------------------------------------------------------------------------------------------------- sharding explorer


def torchs_ddp(model):
    ddp = DistributedDataParallel(model, bucket_cap_mb=sharding_record._CAP_MB, gradient_as_bucket_view=True)
    return ddp, AdamW(model.parameters(), **sharding_record._ADAM)


TORCHS = {
    "DDP": torchs_ddp,
    "FULL_SHARD": partial(sharding_record.fsdp, shard=fully_shard),
    "SHARD_GRAD_OP": partial(sharding_record.fsdp, shard=fully_shard, reshard_after_forward=False),
    "HYBRID_SHARD, 2 x 2": partial(sharding_record.fsdp, shard=fully_shard, replicas=2),
}


@pytest.fixture(scope="module")
def stories():
    """Ours, by strategy and rank: {moment: Held}."""
    return sharding_record.record_all()


@pytest.fixture(scope="module")
def torchs_stories():
    by_rank = launch(lambda: {name: record(wrap) for name, wrap in TORCHS.items()}, N, device="cpu")
    return {name: [rank[name] for rank in by_rank] for name in TORCHS}


def elements(held: Held, kind: str) -> set[int]:
    return {e for start, end in getattr(held, kind) for e in range(start, end)}


def rows_of(shards: int, shard: int) -> set[int]:
    """By torch.chunk on dim 0 of every tensor."""
    found = set()
    for name, (start, end) in layout().items():
        shape = (sharding_record.HEAD_SHAPES if name.startswith("head") else sharding_record.SHAPES)[
            name.rpartition(".")[2]
        ]
        parts = torch.arange(start, end).view(shape).chunk(shards)
        found |= set(parts[shard].flatten().tolist()) if shard < len(parts) else set()
    return found


def slices_of(rank: int, last_first: bool = False) -> set[int]:
    """Of each unit's tensors laid end to end, cut into N equal parts; `last_first`: as backward makes the gradients."""
    units = {}
    for name, (start, end) in sorted(layout().items(), key=lambda item: item[1], reverse=last_first):
        units.setdefault(name.rpartition(".")[0], []).extend(range(start, end))
    parts = {name: -(-len(unit) // N) for name, unit in units.items()}
    return {e for name, unit in units.items() for e in unit[rank * parts[name] : (rank + 1) * parts[name]]}


OWN = {
    "DDP": lambda rank: rows_of(1, 0),
    "ZERO_1": partial(slices_of, last_first=True),
    "ZERO_2": partial(slices_of, last_first=True),
    "SHARD_GRAD_OP": lambda rank: rows_of(N, rank),
    "FULL_SHARD": lambda rank: rows_of(N, rank),
    "FULL_SHARD, flat parameters": slices_of,
    "HYBRID_SHARD, 2 x 2": lambda rank: rows_of(2, rank % 2),
}
ALL = rows_of(1, 0)


@pytest.mark.parametrize("strategy", OWN)
def test_what_is_kept_is_what_the_layout_says(stories, strategy):
    """torch.chunk for FSDP2, equal slices of a unit laid end to end for flat parameters and ZeRO."""
    parameters_sharded = "SHARD" in strategy
    for rank, story in enumerate(stories[strategy]):
        own = OWN[strategy](rank)
        assert elements(story[KEPT], "parameters") == (own if parameters_sharded else ALL)
        assert elements(story[KEPT], "optimizer_states") == own
        before_step = story["end of backward"]
        if strategy != "ZERO_1":  # which reduces in its step
            assert elements(before_step, "gradients") == own
            assert elements(before_step, "local_gradients") == set()
        assert {m: story[m].optimizer_states for m in story} == dict.fromkeys(story, story[KEPT].optimizer_states)


@pytest.mark.parametrize("strategy", [name for name in OWN if "SHARD" in name])
def test_a_unit_is_whole_while_it_is_used(stories, strategy):
    """In its forward and its backward; freed after forward under FULL_SHARD, and then only the root is left."""
    reshards = strategy != "SHARD_GRAD_OP"
    for rank, story in enumerate(stories[strategy]):
        for name, (start, end) in layout().items():
            unit = name.rpartition(".")[0]
            for moment in (f"forward of {unit}", f"backward of {unit}", f"backward of {unit}, gradients made"):
                assert set(range(start, end)) <= elements(story[moment], "parameters"), moment
        root = set(range(*layout()["head.weight"]))
        left = OWN[strategy](rank) | root if reshards else ALL
        assert elements(story["end of forward"], "parameters") == left
        assert elements(story["end of backward"], "parameters") == OWN[strategy](rank)


def test_gradients_go_as_soon_as_they_are_reduced(stories):
    """ZeRO-2 and FSDP never hold all local gradients; DDP and ZeRO-1 do."""
    for strategy, ranks in stories.items():
        most = max(held.count("local_gradients") for held in ranks[0].values())
        if strategy == "ZERO_1":
            assert most == len(ALL)
        if strategy in ("ZERO_2", "FULL_SHARD", "SHARD_GRAD_OP"):
            assert most < len(ALL)


@pytest.mark.night
@pytest.mark.parametrize("strategy", TORCHS)
def test_torchs_engines_keep_the_same_elements(stories, torchs_stories, strategy):
    """Between steps, in each forward, and at the end of backward. In between they prefetch differently."""
    moments = [KEPT, *(f"forward of blocks.{i}" for i in range(sharding_record.N_BLOCKS)), "end of backward"]
    for ours, torchs in zip(stories[strategy], torchs_stories[strategy], strict=True):
        for moment in moments:
            assert ours[moment].parameters == torchs[moment].parameters, moment
            assert ours[moment].optimizer_states == torchs[moment].optimizer_states, moment
        assert ours["end of backward"].gradients == torchs["end of backward"].gradients


def test_the_sharding_explorer_shows_what_was_found(stories):
    explorer = ShardingExplorer(stories, strategy="FULL_SHARD", moment=KEPT)
    assert "hold: parameters 42, 42, 42, 4; optimizer states 42, 42, 42, 4." in explorer.message
    explorer.moment.value = "forward of blocks.1"
    assert drawn(explorer.figure.axes[0], "parameters") == 3 * 42 + 4, "the others are gathered"
    explorer.moment.value = KEPT
    explorer.strategy.value = "HYBRID_SHARD, 2 x 2"
    assert "hold: parameters 65, 65, 65, 65; optimizer states 65, 65, 65, 65." in explorer.message


def test_the_picture_shows_what_was_found(stories):
    """The bars of each colour are as long as the elements that were found."""
    held = [rank["backward of blocks.0, gradients made"] for rank in stories["FULL_SHARD"]]
    kept = [rank[KEPT] for rank in stories["FULL_SHARD"]]
    axes = sharding(held, kept, layout(), "").axes
    own, whole = sum(rank.count("parameters") for rank in kept), sum(rank.count("parameters") for rank in held)
    assert drawn(axes[0], "parameters") == own < whole
    assert drawn(axes[0], "gathered parameters") == whole, "the own ones are drawn over them"
    for ax, look, kind in (
        (axes[1], "gradients of this rank alone", "local_gradients"),
        (axes[1], "gradients, mean over ranks", "gradients"),
        (axes[2], "optimizer states", "optimizer_states"),
    ):
        assert drawn(ax, look) == sum(rank.count(kind) for rank in held) > 0


def drawn(ax, look: str) -> float:
    """The length of all bars of this look."""
    face = to_rgba(sharding_picture._LOOKS[look][0])
    bars = [bars for bars in ax.collections if tuple(bars.get_facecolor()[0]) == face]
    return sum(path.get_extents().width for some in bars for path in some.get_paths())
