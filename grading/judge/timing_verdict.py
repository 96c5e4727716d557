"""Result of a race, and the verdict on it: within a bar, above it, or not clear."""

from dataclasses import dataclass
from math import inf

from grading.judge.verdict import Verdict
from grading.judge.verdict_pictures import of_laps


@dataclass(frozen=True)
class Timing:
    """The submission's time over the reference's: the median of the pairs, and its bounds (`betting_test`)."""

    ratio: float
    low: float
    high: float
    mine_s: float  # of a lap, the median
    reference_s: float
    pairs: int
    laps_s: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())  # of the submission, of the reference

    def within(self, bar: float) -> bool | None:
        """Return True or False if that is clear; None if the machine is too noisy to tell."""
        return True if self.high <= bar else False if self.low > bar else None

    def __str__(self) -> str:
        bounds = [f"at least {self.low:.2f}"] * (self.low > 0) + [f"at most {self.high:.2f}"] * (self.high < inf)
        return f"{self.ratio:.2f} ({', '.join([*bounds, f'{self.pairs} pairs'])})"


def settled(timing: Timing | None, bars: tuple[float, ...]) -> bool:
    """Return True if it is clear which of the bars, the strictest first, is the first that is met, or that none is."""
    answers = [timing.within(bar) if timing else None for bar in bars]
    return None not in answers[: answers.index(True)] if True in answers else None not in answers


def race_verdict(
    check: str, points: float, timing: Timing | None, bar: float, *, beside: str, fast: str, slow: str, idle: str
) -> Verdict:
    """Give full points within `bar`, none above it, and no decision if it is not clear.

    `beside` names the reference ("torch DDP's"). `fast`, `slow` and `idle` are the causes for a pass, for a step that
    is too slow, and for timed steps that did not do the work. `slow` may contain `{ratio:.1f}`.
    """
    if timing is None:
        return Verdict(check, 0, points, idle)
    figures = {f"step time over {beside}": (str(timing), f"{bar:g}")}
    within = timing.within(bar)
    if within is None:
        return too_noisy(check, points, figures)
    cause = fast if within else slow.format(ratio=timing.ratio)
    picture = of_laps(dict(zip(("yours", beside), timing.laps_s, strict=True)))
    return Verdict(check, points if within else 0, points, cause, "", figures, picture=picture)


def too_noisy(check: str, points: float, figures: dict) -> Verdict:
    return Verdict(check, 0, points, "the machine was too noisy to tell; ask again.", "", figures, inconclusive=True)
