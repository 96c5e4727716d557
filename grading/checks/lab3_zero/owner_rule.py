"""The rule that gives a bucket's elements to owners, as the notebook defines it."""

Piece = tuple[int, int, int]  # (parameter, start, end)


def owned(sizes: list[int], shares: list[int], rank: int) -> list[Piece]:
    """Return (parameter, start, end) of each piece that `rank` owns, as the notebook defines it."""
    n, all_shares = sum(sizes), sum(shares)
    first, last = (n * sum(shares[:r]) // all_shares for r in (rank, rank + 1))
    begins = [sum(sizes[:i]) for i in range(len(sizes))]
    cuts = [
        (i, max(first, b) - b, min(last, b + size) - b) for i, (b, size) in enumerate(zip(begins, sizes, strict=True))
    ]
    return [(i, start, end) for i, start, end in cuts if start < end]
