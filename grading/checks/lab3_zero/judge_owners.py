"""Judge whether the submission gives a bucket's elements to the owners that the rule names."""

import random

from grading.checks.lab3_zero.owner_rule import owned
from grading.judge.session import Session
from grading.judge.verdict import Verdict

N_INSTANCES = 60


def judge(s: Session, check: str, points: float) -> Verdict:
    """Give full points if no instance is wrong; half if only instances with unequal shares are wrong."""
    instances = drawn(s.seed)
    replies = s.order(check, "owned", world_size=1, device="cpu", instances=instances)[0]
    wrong = [(i, mine) for i, mine in zip(instances, replies, strict=True) if mine != expected(i)]
    figures = {"buckets dealt out rightly": (f"{N_INSTANCES - len(wrong)}", f"{N_INSTANCES}")}
    if not wrong:
        return Verdict(check, points, points, "every element has the owner that it should have.", "", figures)
    instance, mine = min(wrong, key=lambda pair: (len(pair[0]["sizes"]), sum(pair[0]["sizes"])))
    equal_only = all(len(set(i["shares"])) > 1 for i, _ in wrong)
    got = points / 2 if equal_only else 0
    return Verdict(check, got, points, _cause(instance, mine, equal_only), "", figures)


def drawn(seed: int) -> list[dict]:
    """Draw instances; a third have equal shares. Sizes start at 1 element, so some ranks own nothing."""
    draw = random.Random(seed)
    instances = []
    for i in range(N_INSTANCES):
        n = draw.randint(1, 6)
        sizes = [draw.choice((1, 2, draw.randint(3, 40), draw.randint(40, 5000))) for _ in range(draw.randint(1, 5))]
        shares = [draw.randint(1, 3)] * n if i % 3 == 0 else [draw.randint(1, 6) for _ in range(n)]
        instances.append({"sizes": sizes, "shares": shares})
    return instances


def expected(instance: dict) -> list[list[list[int]]]:
    sizes, shares = instance["sizes"], instance["shares"]
    return [[list(piece) for piece in owned(sizes, shares, rank)] for rank in range(len(shares))]


def _cause(instance: dict, mine: list, equal_only: bool) -> str:
    where = f"with sizes {instance['sizes']} and shares {instance['shares']} "
    times = [[0] * size for size in instance["sizes"]]
    if strange := [(rank, pieces) for rank, pieces in enumerate(mine) if isinstance(pieces, str)]:
        rank, pieces = strange[0]
        return where + f"rank {rank} gets {pieces}, which is no list of tuples of three ints."
    for pieces in mine:
        for i, start, end in pieces:
            if not (0 <= i < len(times) and 0 <= start < end <= len(times[i])):
                return where + f"there is a piece ({i}, {start}, {end}), which is empty or not there."
            times[i][start:end] = [t + 1 for t in times[i][start:end]]
    flat = sum(times, [])
    if 0 in flat:
        return where + f"{flat.count(0)} of {len(flat)} elements have no owner: they would never be updated."
    if max(flat) > 1:
        return where + f"{sum(t > 1 for t in flat)} of {len(flat)} elements have two owners or more."
    if [sorted(pieces) for pieces in mine] == expected(instance):
        return where + "all pieces are right, but not in the order of the parameters."
    if equal_only:
        return where + "every element has one owner, but ranks do not get what their shares say."
    return where + "every element has one owner, but the cuts are not where the rule puts them."
