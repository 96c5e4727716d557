"""The step from findings to a verdict.

A claim *holds* if it agrees with the finding under every condition, *holds under conditions* if it agrees under some,
and is *wrong* if it agrees under none. The file lists the findings too, for its readers; a trial reports which of them
are out of date.
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
        """Return for each condition whether the finding agrees with the claim."""
        return {when: agree(self.claim.says, value, self.claim.within) for when, value in self.found.items()}

    @property
    def verdict(self) -> str:
        agrees = self.agrees.values()
        if not any(agrees):
            return "wrong"
        return "holds" if all(agrees) else "holds under conditions"

    @property
    def problems(self) -> tuple[str, ...]:
        """Return the differences between the file and the trial, in words."""
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
    """Run the claim's check. The first check on real ranks takes some seconds."""
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
    """Return the claim's check. Raises ValueError if there is no such function."""
    module, _, name = claim.check.rpartition(".")
    try:
        return getattr(import_module(f"shardcourse.claims.{module}"), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"claim {claim.id!r}: no check {claim.check!r} in shardcourse.claims") from error


def agree(said: Value | tuple[float, float], found: Value, within: float) -> bool:
    """Return True if `found` agrees with `said`. Numbers may differ by the share `within`, at either end of a range."""
    if isinstance(said, (bool, str)) or isinstance(found, (bool, str)):
        return type(said) is type(found) and said == found
    low, high = said if isinstance(said, tuple) else (said, said)
    return low - within * abs(low) <= found <= high + within * abs(high)
