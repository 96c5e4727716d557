"""Shares of a data sheet's figures that programs reach, each with its origin; none of them is made up.

Measured by others in micro-benchmarks, on one GPU or one cluster each:

    PRODUCTS   bf16 matrix products, of the best shape of many ("MAMF"), card by card: ml-engineering,
               compute/accelerator, "Maximum Achievable Matmul FLOPS comparison table". IN_FP8 is from its table for
               float8_e4m3fn; of a card without a share there, its share in bf16.
    MEMORY     copies and sums of large tensors, relative to the data sheet's bandwidth. STREAM-like kernels are
               published at 0.85 to 0.93 of it; we recalled the upper end, without a single source.
    ATTENTION  FlashAttention-2, head width 128, causal, long sequences. H100: Shah et al. 2024, "FlashAttention-3",
               figures 5 and 6: forward 335 TFLOP/s; backward 322 without a mask, times the 335 / 370 that the mask
               costs forward. A100: Dao 2023, figures 5 to 7, recalled from memory.
    NEWER_ATTENTION  The same, from the same figures of H100, for FlashAttention-3 and for cuDNN: forward 616 and 539;
               backward 561 and 516 without a mask, times the 616 / 648 and 539 / 595 that the mask costs forward.

`shardsim.closed_forms` has the shares of links, and how much slower computation is while NCCL communicates.

Fitted: the numbers under FITTED, on 13 runs of llm-foundry (A100 80 GB and H100, 8 GPUs, sequences of 2048; marked
"fit" among the published runs). These runs are no evidence; all other runs are predictions. A grid search minimized the
mean of |log(predicted / published)|, which is 3%, with no tile deeper than 512. Deeper tiles would come closer to the
A100's 125M model, which stays 12% too fast, but likelier hide missing memory-bound work.

[Note: young libraries] A step's products reach 89% of the best shape's speed on the A100, whose libraries were mature
when these runs were made. On the H100 of 2023 it was 73%: cuBLAS 11.8, the first for Hopper, and kernels of Triton that
did not use its new instructions. With the libraries of today we take the A100's share for all cards; nothing was fitted
for that. FlashAttention's first version stands for the libraries of its time.

[Note: old instructions] FlashAttention-2 multiplies with the instructions of the A100. Newer cards have faster ones,
which it does not use, so that it is hardly faster on a B200 than on an H100: we take the H100's TFLOP/s. That was found
on prime-rl's published runs. cuDNN's kernel on a B200 is the guess OTHER_ATTENTION; forward, FlashAttention-4 has 1,605
TFLOP/s there and is 1.3 times as fast as cuDNN 9.13, which makes 0.55. Source: Together AI 2026, "FlashAttention-4".

[Note: GeForce] These cards run above their data sheet's clock, so they reach its figure. FlashAttention-2 has 165
TFLOP/s on an RTX 4090, as much as the sheet: Zhang et al. 2024, "SageAttention", figure 1 (as recalled).

[Note: power] The power limit slows large products, and so the whole step, before the number of units does. Power grows
with frequency times voltage squared, and voltage with frequency, so speed grows with the cube root of power. A card
that may draw 500 W instead of 700 multiplies at 89% of the speed. Its memory has its own clock, and is not slowed.
Source: He 2024, "Strangely, matrix multiplications on GPUs run faster when given predictable data", for what limits.
"""

from shardsim.hardware import Gpu

# By the beginning of a GPU's name
PRODUCTS = {
    "A100": 268 / 312,
    "H100": 794 / 989,
    "H200": 794 / 989,
    "B200": 1745 / 2250,
    "GB200": 1745 / 2250,
    "MI250X": 147 / 191.5,
    "MI300X": 782 / 1307,
    **dict.fromkeys(("RTX-3090", "RTX-4090", "RTX-5090"), 1.0),  # see [Note: GeForce]
}
IN_FP8 = {
    "H100": 1402.6 / 1979,
    "H200": 1453.4 / 1979,
    "B200": 3432.5 / 4500,
    "B300": 3353.3 / 4500,
    "GB200": 3615.6 / 5000,
}
OTHER_PRODUCTS = 0.8  # cards without a published share: a little above the middle of these
MEMORY = 0.92
ATTENTION = {"A100": (200 / 312, 175 / 312), "H100": (335 / 989, 290 / 989), "H200": (335 / 989, 290 / 989)}
ATTENTION |= dict.fromkeys(("RTX-3090", "RTX-4090", "RTX-5090"), (1.0, 175 / 200))  # backward as the A100's
ATTENTION |= {name: (335 / 2250, 290 / 2250) for name in ("B200", "B300")}  # see [Note: old instructions]
ATTENTION |= {name: (335 / 2500, 290 / 2500) for name in ("GB200", "GB300")}
OTHER_ATTENTION = (0.5, 0.4)  # forward, backward
NEWER_ATTENTION = {  # kernels that use the instructions of the newest cards
    "flash-3": dict.fromkeys(("H100", "H200"), (616 / 989, 533 / 989)),
    "cudnn": dict.fromkeys(("H100", "H200"), (539 / 989, 467 / 989)),  # the others have OTHER_ATTENTION
}
FIRST_FLASH = (0.4 * 312 / 200, 0.3 * 312 / 175)  # relative to these: version 1 had 30-50% of the A100, backward 25-35%
LEAD_IN = 300  # positions; short sequences are slower: 191 TFLOP/s at 512, 298 at 2048, 335 at 16384

HOST_MEMORY = 0.75  # STREAM's share of the processors' memory bandwidth, which `shardsim.machines` has for each machine
LAUNCH_S = 10e-6  # of an operation in eager mode, until its kernel is queued: 5 to 25 us are published
COMPILED_LAUNCH = 0.5  # of it: no autograd and no dispatcher for each kernel, but guards and a Python wrapper remain

# FITTED
SUSTAINED = 0.8875  # a step's products reach this share of the best shape's
YOUNG = {"H100": 0.725, "H200": 0.725}  # the same with the libraries of FlashAttention 1: see [Note: young libraries]
TILE_DEPTH = 512  # starting and finishing a tile costs as much as this many steps of the inner dimension


def product_share(gpu: Gpu, kernel: str = "flash", each: int = 2) -> float:
    """Share that a step's products of numbers of `each` bytes reach, with the libraries of this attention kernel's
    time."""
    sustained = _by_name(YOUNG, gpu, SUSTAINED) if kernel == "flash-1" else SUSTAINED
    best = _by_name(PRODUCTS, gpu, OTHER_PRODUCTS)
    best = _by_name(IN_FP8, gpu, best) if each == 1 else best
    return best * sustained * gpu.power_share ** (1 / 3) * gpu.pace


def attention_shares(gpu: Gpu, kernel: str = "flash") -> tuple[float, float]:
    """Shares that attention reaches in forward and in backward."""
    older = FIRST_FLASH if kernel == "flash-1" else (1.0, 1.0)
    shares = _by_name(NEWER_ATTENTION.get(kernel, ATTENTION), gpu, OTHER_ATTENTION)
    return tuple(
        gpu.pace * share * less * gpu.power_share ** (1 / 3) for share, less in zip(shares, older, strict=True)
    )


def _by_name(table: dict, gpu: Gpu, other):
    return next((value for name, value in table.items() if gpu.name.startswith(name)), other)
