"""Sums over many ranks: all orders give the mean in fp32, and in bf16 a chain loses what a tree keeps."""

import torch

from shardcourse.experiments.sums_over_many_ranks import (
    SORTED,
    reduce_in_a_chain,
    reduce_in_a_ring,
    reduce_in_a_tree,
    train_table,
)
from shardlab import launch

ORDERS = (reduce_in_a_chain, reduce_in_a_ring, reduce_in_a_tree)


def _sums_of_ones(dtype):
    """The mean of 512 ranks' ones, in each order."""
    return [reduce(torch.ones(256, 8), dtype)[0].item() for reduce in ORDERS]


def _means(dtype):
    import torch.distributed as dist

    draw = torch.Generator().manual_seed(dist.get_rank())
    gradients = torch.randn(8, 4, 4, generator=draw)
    return gradients, [reduce(gradients, dtype) for reduce in ORDERS]


def test_every_order_gives_the_mean():
    ranks = launch(_means, 2, torch.float32, device="cpu", stream=False)
    mean = torch.cat([gradients for gradients, _ in ranks]).mean(0)
    for _, means in ranks:
        for found in means:
            torch.testing.assert_close(found, mean)


def test_a_chain_stops_at_256_and_a_tree_does_not():
    chain, ring, tree = launch(_sums_of_ones, 2, torch.bfloat16, device="cpu", stream=False)[0]
    assert chain == ring == 256 / 512
    assert tree == 1


def _highest(dtype, plays):
    return max(train_table(dtype, plays=plays, steps=SORTED.stop)[SORTED.start :])


def test_sorted_data_raise_the_loss_in_bf16_only_on_many_ranks():
    fp32, bf16, few = (
        launch(_highest, 2, dtype, plays, device="cpu", stream=False)[0]
        for dtype, plays in ((torch.float32, 1024), (torch.bfloat16, 1024), (torch.bfloat16, 32))
    )
    assert bf16 > 1.3 * fp32
    assert few < 1.05 * fp32
