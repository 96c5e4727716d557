"""What is no number is no small error."""

from math import inf, nan

import pytest

from grading.checks.errors_with_nan import largest


@pytest.mark.parametrize("errors", [[nan, 0.0], [0.0, nan], [0.0, inf]])
def test_a_nan_is_the_largest_error_wherever_it_stands(errors):
    assert largest(errors) == inf
    assert largest([0.5, 0.25]) == 0.5
