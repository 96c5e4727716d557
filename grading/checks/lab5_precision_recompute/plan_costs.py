"""What a plan of recomputation costs, by a price list of blocks: bytes at the peak, and FLOPs computed again."""

Blocks = list[dict[str, tuple[int, int]]]  # for each block: way -> (bytes held until backward, FLOPs computed again)
WAYS = ("keep", "selective", "full")


def peak_of(plan: list[str], blocks: Blocks) -> int:
    """Return the most bytes of activations at once: one whole block, and what earlier blocks hold by their way."""
    held = peak = 0
    for way, block in zip(plan, blocks, strict=True):
        peak = max(peak, held + block["keep"][0])
        held += block[way][0]
    return peak


def flops_of(plan: list[str], blocks: Blocks) -> int:
    return sum(block[way][1] for way, block in zip(plan, blocks, strict=True))


def saved_bytes(plan: list[str], blocks: Blocks) -> list[int]:
    """Return, for each block, the bytes that it does not hold until backward, beside a block that keeps all."""
    return [block["keep"][0] - block[way][0] for way, block in zip(plan, blocks, strict=True)]
