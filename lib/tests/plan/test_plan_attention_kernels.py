"""Kernels of attention: how fast each is on each card, and which cards have it."""

import pytest

from shardplan.api import setup_of
from shardplan.speed import achievable, speed_plan
from shardplan.strategy import NEWER_ATTENTION, Refusal
from shardsim.hardware import GPUS


def rate(gpu: str, kernel: str) -> tuple[float, float]:
    """FLOP/s in forward and in backward."""
    return tuple(share * GPUS[gpu].half_flops for share in achievable.attention_shares(GPUS[gpu], kernel))


def test_kernels_of_one_card_by_age():
    """As figures 5 and 6 of the FlashAttention-3 paper have them, in forward with a mask at 16,384 positions."""
    rates = [rate("H100-80GB", kernel) for kernel in ("flash-1", "flash", "cudnn", "flash-3")]
    assert rates == sorted(rates)
    assert [round(forward / 1e12) for forward, _ in rates[1:]] == [335, 539, 616]


@pytest.mark.parametrize("gpu", ["B200-180GB", "GB200-186GB", "B300-288GB"])
def test_flash_attention_2_is_as_fast_on_blackwell_as_on_hopper(gpu):
    """It does not use what is new there. cuDNN's kernel does."""
    assert rate(gpu, "flash") == pytest.approx(rate("H100-80GB", "flash"), rel=0.01)
    assert rate(gpu, "cudnn")[0] > 3 * rate(gpu, "flash")[0]


def test_a_kernel_is_refused_where_it_is_not_known():
    for kernel, cards in NEWER_ATTENTION.items():
        assert set(achievable.NEWER_ATTENTION[kernel]) <= set(cards)
        with pytest.raises(Refusal, match=f"planned on {cards[0]}") as refused:
            setup_of("8B", "dgx-a100", 8, attention=kernel)
        assert refused.value.fix == {"attention": "flash"}
        assert setup_of("8B", "dgx-h100", 8, attention=kernel).strategy.attention == kernel


def test_long_sequences_gain_most_from_a_newer_kernel():
    gain = {
        positions: speed_plan(setup_of("8B", "dgx-h100", 8, seq_len=positions, attention="flash-3")).tokens_per_s
        / speed_plan(setup_of("8B", "dgx-h100", 8, seq_len=positions)).tokens_per_s
        for positions in (2048, 8192)
    }
    assert 1 < gain[2048] < gain[8192] < 616 / 335
