"""A test by betting: look after every value, stop when sure, and be wrong no more often than promised.

Is the median of these values above a bar? If it is not, each new value is above the bar with a chance of at most 1/2,
whatever came before. Bet on "above" at even odds. The expected wealth then never exceeds the initial wealth of 1, so
the chance that it *ever* reaches 1,000 is at most 1 in 1,000 (Ville's inequality). This holds for values of any
distribution, even if it changes over time, and even if one stops as soon as the bet is won.

The bet: half of the money on p = 1, the rest evenly on every chance p of "above" between 1/2 and 1. The wealth after k
of n values above has a closed form. Source: Ville 1939; Waudby-Smith & Ramdas 2024, "Estimating means of bounded random
variables by betting".
"""

from bisect import bisect_left
from functools import cache
from math import comb, inf


def wealth(k: int, n: int) -> float:
    """Wealth, initially 1, after k of n values came out as bet: 2^n p^k (1-p)^(n-k), averaged over the bets on p."""
    evenly = sum(comb(n + 1, j) for j in range(k + 1)) / ((n + 1) * comb(n, k))
    return (evenly + (2.0**n if k == n else 0.0)) / 2


@cache
def needed(n: int, chance: float) -> int:
    """Return the fewest of n values on one side that decide the test; n + 1 if even all of them do not."""
    return bisect_left(range(n + 1), True, key=lambda k: wealth(k, n) >= 1 / chance)


def median_bounds(values: list[float], too_low: float, too_high: float) -> tuple[float, float]:
    """Return bounds (low, high): the median is below `low` with chance at most `too_low`, above `high` with `too_high`.

    These are the chances of *ever* seeing a wrong bound, however often one looks. The bounds are (0, inf) while there
    are too few values. Values are positive.
    """
    ordered, n = sorted(values), len(values)
    above, below = needed(n, too_low), needed(n, too_high)
    return ordered[n - above] if above <= n else 0.0, ordered[below - 1] if below <= n else inf
