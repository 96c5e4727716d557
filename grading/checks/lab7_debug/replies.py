"""What a submission's function returned, or words for what it should have."""

from collections.abc import Callable
from typing import Any


def read(returned: Any, expected: str, reading: Callable[[Any], Any]) -> Any:
    """`reading(returned)`; if that can't be read, an error that says what is expected."""
    try:
        return reading(returned)
    except (AttributeError, LookupError, TypeError, ValueError):
        raise TypeError(f"it returns {returned!r:.60}, and should return {expected}") from None
