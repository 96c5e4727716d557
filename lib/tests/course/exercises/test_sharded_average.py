"""The check of lesson 16's exercise: it accepts the folded answer, and names what is wrong with changed ones."""

import pytest
from lesson_answers import answer, defined

from shardcourse.exercises.sharded_average import check_average

ANSWER = answer("16_the_whole_job.ipynb", "class MyAverage")
COPY = "p.detach().clone() for name, p in model.named_parameters()"


def said_of(old: str = "", new: str = "") -> str:
    assert old in ANSWER
    return check_average(defined(ANSWER.replace(old, new), "MyAverage"))


def test_the_folded_answer_is_right():
    assert said_of().startswith("Right: ")


def test_whole_averages_are_refused():
    """The mistake that costs most: each rank holds the average of the whole model."""
    assert "has a plain tensor for 0.weight, whole" in said_of(COPY, COPY.replace("p.", "p.full_tensor().", 1))


@pytest.mark.night
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (COPY, COPY.replace(".detach().clone()", ".detach()"), "was it copied when you began?"),
        (COPY, COPY.replace("p.", "p.to_local().", 1), "has a plain tensor for 0.weight, this rank's part"),
        (COPY, COPY.replace(".detach()", ""), "requires a gradient"),
        ("1 - self.decay", "self.decay", "is not decay * average + (1 - decay) * weights"),
        ("return dict(self.average)", "return {}", "should have the model's"),
        ("average.copy_(state[name])", "pass", "Three ranks load what two ranks saved"),
        ("self._write(self.average)", "pass", "Inside `with swapped()`"),
        ("self._write(weights)", "pass", "is not what it was"),
        ("        finally:", "        except TypeError:", "left by an error"),
        ("self.model.reshard()", "pass", "with an evaluation before and inside it, fails: "),
        ("def update(self):", "def update(self, step):", "It fails. "),
    ],
)
def test_what_is_wrong_is_named(old, new, words):
    assert words in said_of(old, new)
