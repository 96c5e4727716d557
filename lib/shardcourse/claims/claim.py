"""The claims, as read from the file."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("claims.toml")
VERDICTS = ("holds", "holds under conditions", "wrong")
SHOWN_BY = ("plan", "measured", "torch")
LESSONS = range(16)
PAGES = {  # the five pages that the course grew from: title and author, as far as the page tells
    "000": "FSDP + ZeRO: Sharded Training, by Şükrü Yusuf Kaya",
    "001": "Week 14: Data Parallelism (DDP, ZeRO, FSDP)",
    "002": "PyTorch FSDP Anatomy, by Şükrü Yusuf Kaya",
    "003": "torch.distributed In Depth, by Şükrü Yusuf Kaya",
    "004": "DeepSpeed ZeRO Stage 1/2/3 + ZeRO-Infinity, by Şükrü Yusuf Kaya",
}

Value = bool | float | str
Findings = Mapping[str, Value]  # the value found, by condition


@dataclass(frozen=True)
class Claim:
    """A claim of a source, with its findings and verdict. `says` is a value or [low, high]; each finding is a value."""

    id: str
    sources: tuple[str, ...]  # "003 5": the page's number and its section
    claim: str
    says: Value | tuple[float, float]
    check: str  # module and function of this package: "held.states"
    shown_by: str  # one of SHOWN_BY
    lesson: int  # the lesson that shows it
    verdict: str  # one of VERDICTS
    truth: str  # in a sentence or two
    found: Findings  # by the check
    unit: str = ""  # of `says` and of the findings: "GB", 1e9 bytes; "x"; "share"; none for yes or no
    given: tuple[tuple[str, Value], ...] = ()  # the check's arguments
    within: float = 0.05  # how far a finding may be off, as a share: the pages round
    tolerance: float = 0.01  # how far a check may deviate from the findings in the file, as a share

    def __post_init__(self) -> None:
        """Check the fields. Raises ValueError that names the claim, the field and its possible values."""
        for name, values in (("verdict", VERDICTS), ("shown_by", SHOWN_BY), ("lesson", LESSONS)):
            if getattr(self, name) not in values:
                raise ValueError(
                    f"claim {self.id!r}: {name}={getattr(self, name)!r}; there are {', '.join(map(str, values))}"
                )


@cache
def claims(file: Path = FILE) -> dict[str, Claim]:
    """Return all claims by id, in the file's order. Raises ValueError for repeated ids, missing and unknown fields."""
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
