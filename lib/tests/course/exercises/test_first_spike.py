"""The check of lesson 13b's exercise: it accepts the lesson's answer, and says what is wrong with wrong ones."""

import math
from statistics import median

import pytest

from shardcourse.exercises.first_spike import problems


def answer(history, factor=3.0, window=20, warm_up=10):
    def too_large(x, usual):
        return not math.isfinite(x) or x > factor * usual

    for step, (norm, losses) in enumerate(history):
        before = [n for n, _ in history[max(0, step - window) : step]]
        if step < warm_up or not too_large(norm, median(before)):
            continue
        finite = [x for x in losses if math.isfinite(x)]
        usual = median(finite) if finite else 0.0
        return step, [rank for rank, x in enumerate(losses) if too_large(x, usual / 1.5)]
    return None


def compares_with_the_step_before(history):
    return next(
        ((n, []) for n in range(10, len(history)) if history[n][0] > 3 * history[n - 1][0]),
        None,
    )


def compares_with_a_fixed_norm(history):
    return next(((n, []) for n, (norm, _) in enumerate(history) if norm > 5), None)


def names_no_rank(history):
    found = answer(history)
    return found and (found[0], [])


def returns_the_largest(history):
    return max(range(len(history)), key=lambda n: history[n][0]), []


@pytest.mark.parametrize(
    ("first_spike", "said"),
    [
        (answer, None),
        (compares_with_the_step_before, "a norm of 6 in step 25, one rank's loss is high: it should return (25, [2])"),
        (compares_with_a_fixed_norm, "large norms in steps 0 to 4"),
        (names_no_rank, "NaN in the loss of rank 3: it should return (20, [3]), and returns (20, [])"),
        (returns_the_largest, "a calm run: it should return None"),
    ],
)
def test_the_check_says_what_is_wrong(first_spike, said):
    found = problems(first_spike)
    assert found == [] if said is None else any(said in problem for problem in found)
