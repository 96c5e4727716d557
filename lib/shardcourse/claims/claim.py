"""The claims, as they stand in the file."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

FILE = Path(__file__).parents[2] / "benchmarks" / "claims.toml"
VERDICTS = ("holds", "holds under conditions", "wrong")
SHOWN_BY = ("plan", "measured", "torch")
LESSONS = range(16)

Value = bool | float | str
Findings = Mapping[str, Value]  # what was found, by the condition under which it was


@dataclass(frozen=True)
class Claim:
    """What somebody says, and what became of it. `says` is a value, or [low, high]; so are the findings values."""

    id: str
    sources: tuple[str, ...]  # "003 5": the page's number and its section
    claim: str
    says: Value | tuple[float, float]
    check: str  # module and function of this package: "held.states"
    shown_by: str  # one of SHOWN_BY
    lesson: int  # which shows it
    verdict: str  # one of VERDICTS
    truth: str  # in a sentence or two
    found: Findings  # by the check
    unit: str = ""  # of what is said and found: "GB", 1e9 bytes; "x"; "%"; none of a yes or no
    given: tuple[tuple[str, Value], ...] = ()  # the check's arguments
    within: float = 0.05  # a finding may be so far off, as a share: the pages round
    tolerance: float = 0.01  # so far may the check stray from what the file says it found

    def __post_init__(self) -> None:
        """Raises ValueError that names the claim, the field and what it may be."""
        for name, values in (("verdict", VERDICTS), ("shown_by", SHOWN_BY), ("lesson", LESSONS)):
            if getattr(self, name) not in values:
                raise ValueError(
                    f"claim {self.id!r}: {name}={getattr(self, name)!r}; there are {', '.join(map(str, values))}"
                )


@cache
def claims(file: Path = FILE) -> dict[str, Claim]:
    """By id, in the order of the file. Raises ValueError where two have one id, or a field is missing or unknown."""
    found: dict[str, Claim] = {}
    for entry in tomllib.loads(file.read_text(encoding="utf-8"))["claim"]:
        claim = _claim(entry)
        if claim.id in found:
            raise ValueError(f"two claims have the id {claim.id!r}")
        found[claim.id] = claim
    return found


def _claim(entry: dict) -> Claim:
    name = entry.get("id", "without an id")
    needed = {f.name for f in fields(Claim)} - {"unit", "given", "within", "tolerance"}
    if wrong := sorted(needed - set(entry)) + sorted(set(entry) - {f.name for f in fields(Claim)}):
        raise ValueError(f"claim {name!r}: these fields are missing or unknown: {', '.join(wrong)}")
    says = tuple(entry["says"]) if isinstance(entry["says"], list) else entry["says"]
    given = tuple(entry.get("given", {}).items())
    return Claim(**entry | {"says": says, "given": given, "sources": tuple(entry["sources"])})
