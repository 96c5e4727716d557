"""The literal parts of patterns, so that a log is searched for texts, and only lines that have one for patterns."""

import re
from functools import cache
from re import _parser as parser  # type: ignore[attr-defined]

SHORTEST = 4


@cache
def literals(pattern: str) -> frozenset[str]:
    """Return texts of which at least one is in every match; empty if the pattern has none of four letters or more."""
    return frozenset(_best(parser.parse(pattern)))


def _best(parsed) -> set[str]:
    choices: list[set[str]] = []
    run = ""
    for operation, value in [*parsed, (None, None)]:
        if operation is parser.LITERAL:
            run += chr(value)
            continue
        choices.append({run})
        run = ""
        if operation is parser.SUBPATTERN and not value[1] & re.IGNORECASE:
            choices.append(_best(value[3]))
        elif operation is parser.BRANCH:
            branches = [_best(branch) for branch in value[1]]
            choices.append(set().union(*branches) if all(branches) else set())
        elif operation in (parser.MAX_REPEAT, parser.MIN_REPEAT) and value[0] > 0:
            choices.append(_best(value[2]))
    if parsed.state.flags & re.IGNORECASE:
        return set()
    usable = [c for c in choices if c and min(map(len, c)) >= SHORTEST]
    return max(usable, key=lambda c: min(map(len, c)), default=set())
