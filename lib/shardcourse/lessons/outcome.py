"""The outcome of executing one notebook, and outcomes as a JUnit file for CI services."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

_NOT_IN_XML = dict.fromkeys(c for c in range(32) if chr(c) not in "\t\n\r")


@dataclass(frozen=True)
class Outcome:
    notebook: str
    seconds: float
    cells: int  # the number of executed cells
    slowest_cell_s: float
    problems: list[str]
    digest: str = ""  # of everything that decides how the notebook runs: see lessons.changed


def write_junit(file: Path, outcomes: Sequence[Outcome], tier: str) -> None:
    """Write one suite, with one test for each notebook."""
    n_failed = sum(bool(o.problems) for o in outcomes)
    seconds = f"{sum(o.seconds for o in outcomes):.1f}"
    counts = {"tests": str(len(outcomes)), "failures": str(n_failed), "errors": "0", "skipped": "0", "time": seconds}
    suite = ElementTree.Element("testsuite", name=f"shardlab, tier {tier}", **counts)
    for o in outcomes:
        case = ElementTree.SubElement(suite, "testcase", name=o.notebook, classname=tier, time=f"{o.seconds:.1f}")
        if o.problems:
            words = [p.translate(_NOT_IN_XML) for p in o.problems]
            ElementTree.SubElement(case, "failure", message=words[0]).text = "\n".join(words)
    file.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(suite).write(file, encoding="utf-8", xml_declaration=True)
