"""From findings to a verdict.

A claim *holds* if it agrees with what was found under every condition, *holds under conditions* if under some, and is
*wrong* if under none. What is found stands in the file too, for its readers; a trial says where that is out of date.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module

from shardcourse.claims.claim import Claim, Findings, Value


@dataclass(frozen=True)
class Trial:
    claim: Claim
    found: Findings

    @property
    def agrees(self) -> dict[str, bool]:
        """By condition."""
        return {when: agree(self.claim.says, value, self.claim.within) for when, value in self.found.items()}

    @property
    def verdict(self) -> str:
        agrees = self.agrees.values()
        if not any(agrees):
            return "wrong"
        return "holds" if all(agrees) else "holds under conditions"

    @property
    def problems(self) -> tuple[str, ...]:
        """Where the file and the trial differ."""
        return tuple(self._problems())

    def _problems(self) -> Iterator[str]:
        claim = self.claim
        if self.verdict != claim.verdict:
            yield f"{claim.id}: the file's verdict is {claim.verdict!r}, and the trial's {self.verdict!r}"
        if set(self.found) != set(claim.found):
            yield f"{claim.id}: the file has findings for {sorted(claim.found)}, and the trial {sorted(self.found)}"
        for when in set(self.found) & set(claim.found):
            if not agree(claim.found[when], self.found[when], claim.tolerance):
                yield f"{claim.id}, {when}: the file says {claim.found[when]!r}, and found was {self.found[when]!r}"


def try_claim(claim: Claim) -> Trial:
    """Run the claim's check. On real ranks that takes some seconds, the first time."""
    check = check_of(claim)
    try:
        found = check(**dict(claim.given))
    except Exception as error:
        error.add_note(f"in the check {claim.check} of the claim {claim.id!r}")
        raise
    if not found:
        raise ValueError(f"the check {claim.check} of the claim {claim.id!r} found nothing: that is no verdict")
    return Trial(claim, found)


def check_of(claim: Claim):
    """Raises ValueError if there is no such function."""
    module, _, name = claim.check.rpartition(".")
    try:
        return getattr(import_module(f"shardcourse.claims.{module}"), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"claim {claim.id!r}: no check {claim.check!r} in shardcourse.claims") from error


def agree(said: Value | tuple[float, float], found: Value, within: float) -> bool:
    """Numbers may differ by the share `within` of what is said, or of either end of a range."""
    if isinstance(said, (bool, str)) or isinstance(found, (bool, str)):
        return type(said) is type(found) and said == found
    low, high = said if isinstance(said, tuple) else (said, said)
    return low - within * abs(low) <= found <= high + within * abs(high)
