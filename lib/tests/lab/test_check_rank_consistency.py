"""What ranks hold is compared before they train: equal, or the first difference in words."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from shardlab import launch
from shardlab.check_rank_consistency import checksum, difference

CPU = torch.device("cpu")


def compared(differing_rank: int | None) -> tuple | None:
    mine = ["a is 1", "b is 3" if dist.get_rank() == differing_rank else "b is 2"]
    return difference(mine, [None], CPU)


def test_the_first_difference_is_named_on_every_rank():
    assert launch(compared, 3, None) == [None] * 3
    found = launch(compared, 3, 1)
    assert found == [(1, "b is 2", "b is 3"), (0, "b is 3", "b is 2"), (1, "b is 2", "b is 3")]


def fewer_on_rank_1() -> tuple | None:
    return difference(["a"] if dist.get_rank() else ["a", "b"], [None], CPU)


def test_what_only_one_rank_has_is_a_difference():
    assert launch(fewer_on_rank_1, 2) == [(1, "b", "nothing more"), (0, "nothing more", "b")]


@pytest.mark.parametrize("n", [1, 3, 4, 7])
def test_a_checksum_sees_every_element(n):
    """Also those behind the last whole 8 bytes."""
    for i in range(n):
        a, b = torch.ones(n, dtype=torch.bfloat16), torch.ones(n, dtype=torch.bfloat16)
        b[i] = 2
        assert checksum(nn.Parameter(a)) == checksum(nn.Parameter(torch.ones(n, dtype=torch.bfloat16)))
        assert checksum(nn.Parameter(a)) != checksum(nn.Parameter(b))
