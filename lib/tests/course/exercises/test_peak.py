"""The exercise of lesson 1: its answer is right, and each wrong answer is told what is wrong."""

import pytest

from shardcourse.exercises.peak import check_peak


def right(widths, rows):
    weights = [a * b for a, b in zip(widths, widths[1:], strict=False)]
    last = len(weights)  # layers are 1 to last; layer i leads from widths[i - 1] to widths[i]
    moments = [rows * sum(widths)]  # the end of forward
    for i in range(1, last + 1):
        if i < last:
            moments.append(sum(weights[i:]) + rows * (sum(widths[: i + 1]) + 2 * widths[i]))
        output_gradient = widths[i] if i < last else 0
        input_gradient = widths[i - 1] if i > 1 else 0
        moments.append(sum(weights[i - 1 :]) + rows * (sum(widths[:i]) + output_gradient + input_gradient))
    return 4 * (3 * sum(weights) + max(moments))


def weights_of(widths):
    return sum(a * b for a, b in zip(widths, widths[1:], strict=False))


@pytest.mark.parametrize(
    ("predict", "words"),
    [
        (right, "Right: 4 setups"),
        (lambda widths, rows: None, "Not written yet"),
        (lambda widths, rows: right(widths, rows) / 4, "numbers, not bytes"),
        (lambda widths, rows: right(widths, rows) - 8 * weights_of(widths), "two states of each parameter are missing"),
        (lambda widths, rows: right(widths, rows) - 4 * weights_of(widths), "as large as the parameters is missing"),
        (lambda widths, rows: 16 * weights_of(widths) + 4 * rows * sum(widths), "gradients come as activations go"),
        (lambda widths, rows: 12 * weights_of(widths) + 4 * rows * sum(widths), "This is the end of forward"),
        (lambda widths, rows: 16 * weights_of(widths) + 4 * rows * widths[0], "This is the optimizer's step"),
    ],
)
def test_an_answer_is_told_what_is_wrong(predict, words):
    assert words in check_peak(predict)
