"""Judge the wrong and the right submissions of a lab's class: does the intended check stop each wrong one?"""

import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import zip_longest
from multiprocessing import get_context

from grading.judge.judge_answers import Referee
from grading.samples.sample import Sample, samples
from grading.samples.trial import handed_in, judge, surprises


def run(lab: str, at_a_time: int = 2, tier: str = "cpu", at_most: int | None = None) -> dict:
    """Judge every sample, or `at_most` of them: right and wrong ones in turn, as far as there are both.

    `surprises`: by sample, verdicts that are not as expected, in points or in cause.
    """
    everybody = chosen(samples(lab), at_most)
    begin = time.monotonic()
    with ProcessPoolExecutor(at_a_time, mp_context=get_context("spawn")) as workers:
        found = dict(zip([s.name for s in everybody], workers.map(partial(_surprises, tier), everybody), strict=True))
    wrong = [s for s in everybody if s.points]
    return {
        "right ones": len(everybody) - len(wrong),
        "of which all points": sum(not found[s.name] for s in everybody if not s.points),
        "wrong ones": len(wrong),
        "of which stopped as meant": sum(not found[s.name] for s in wrong),
        "surprises": {name: words for name, words in found.items() if words},
        "minutes": round((time.monotonic() - begin) / 60, 1),
    }


def chosen(everybody: list[Sample], at_most: int | None) -> list[Sample]:
    """Return all samples, or the first `at_most` when right and wrong ones take turns."""
    sides = [[s for s in everybody if not s.points], [s for s in everybody if s.points]]
    in_turn = [s for pair in zip_longest(*sides) for s in pair if s is not None]
    return in_turn if at_most is None else in_turn[:at_most]


def _surprises(tier: str, sample: Sample) -> list[str]:
    with Referee(sample.lab, tier) as referee:
        return surprises(sample, judge(sample, handed_in(sample), referee))


def by_lab(labs: list[str]) -> dict[str, partial]:
    """Return a part of the record for each lab, since some take half an hour."""
    return {f"mutants of {lab}": partial(run, lab) for lab in labs}
