"""Read what a submission's function returned, or raise an error that says what it should return."""

from collections.abc import Callable
from typing import Any


def read(returned: Any, expected: str, reading: Callable[[Any], Any]) -> Any:
    """Return `reading(returned)`. Raises TypeError, which says what is expected, if that can't be read."""
    try:
        return reading(returned)
    except (AttributeError, LookupError, TypeError, ValueError):
        raise TypeError(f"it returns {returned!r:.60}, and should return {expected}") from None
