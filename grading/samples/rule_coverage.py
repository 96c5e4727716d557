"""Rules of a lab's text: the words that state each, the checks that see it broken, and samples that break it alone.

They stand in `grading/checks/<lab>/rule_coverage.toml`:

    [gathered-in-16-bits]
    says = "all that is sent but gradients is at most 0.55"  # words that the notebook's text has once
    checks = ["lab5.wire"]                                   # each takes points where the rule is broken
    mutants = ["gathers_in_fp32", "one_block_in_fp32"]       # samples that break this rule and no other, one everywhere

    [_no_rules]                     # sentences that sound like rules: their words = why no check is needed
    "You may print what you like" = "a permission"
"""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grading.judge.find_lab import lab_module
from grading.samples.sample import read_lab, samples

_CHECKS = Path(__file__).parents[1] / "checks"
_NO_RULES = "_no_rules"
_FEWEST_MUTANTS = 2  # a plain one and a subtle one
_SOUNDS_LIKE_A_RULE = re.compile(
    r"\b(must|may|can't|cannot|at most|at least|exactly|within|never|refused|only|each once|no points|need not)\b"
)


@dataclass(frozen=True)
class Rule:
    """A rule, as rule_coverage.toml has it. `says` has the text's words, with single spaces."""

    name: str
    says: str
    checks: tuple[str, ...]
    mutants: tuple[str, ...]


def rules(lab: str) -> list[Rule]:
    """Return the lab's rules, in the order of its rule_coverage.toml."""
    entries = _entries(lab)
    entries.pop(_NO_RULES, None)
    return [Rule(name, _spaced(e["says"]), tuple(e["checks"]), tuple(e["mutants"])) for name, e in entries.items()]


def faults(lab: str) -> list[str]:
    """Return what is wrong with the lab's table, in words: a rule without a check, a sentence without a rule."""
    table, cells = rules(lab), _texts(lab)
    no_rules = [_spaced(words) for words in _entries(lab).get(_NO_RULES, {})]
    said = [*(rule.says for rule in table), *no_rules]
    found = [f"the text has these words {n} times: {words!r}" for words in said if (n := _count(words, cells)) != 1]
    for sentence in _sentences(cells):
        if _SOUNDS_LIKE_A_RULE.search(sentence) and not any(_overlap(words, sentence, cells) for words in said):
            found.append(f"a sentence without a rule: {sentence!r}")
    for item in (line for cell in cells for line in cell.splitlines() if re.match(r"\d+\. ", line)):
        if not any(_overlap(words, item, cells) for words in said):
            found.append(f"an item without a rule: {item!r}")
    checks = lab_module(lab).CHECKS
    untested = set(checks) - {check for rule in table for check in rule.checks}
    found += [f"{check} looks at no rule" for check in checks if check in untested]
    return found + [words for rule in table for words in _faults_of(rule, lab, set(checks), table)]


def _faults_of(rule: Rule, lab: str, checks: set[str], table: list[Rule]) -> Iterator[str]:
    by_name = {sample.name: sample for sample in samples(lab)}
    uses = Counter(mutant for other in table for mutant in other.mutants)
    if unknown := {*rule.checks} - checks:
        yield f"{rule.name}: no check is called {', '.join(sorted(unknown))}"
    if len(set(rule.mutants)) < _FEWEST_MUTANTS:
        yield f"{rule.name}: {len(set(rule.mutants))} mutants, of {_FEWEST_MUTANTS} at least"
    if not any(name in by_name and set(rule.checks) <= set(by_name[name].points) for name in rule.mutants):
        yield f"{rule.name}: no mutant loses points by each of {', '.join(rule.checks)}"
    for name in rule.mutants:
        if name not in by_name:
            yield f"{rule.name}: no sample is called {name}"
        elif not set(by_name[name].points) & set(rule.checks):
            yield f"{rule.name}: {name} loses no points by {', '.join(rule.checks)}"
        elif others := set(by_name[name].points) - set(rule.checks):
            yield f"{rule.name}: {name} loses points by {', '.join(sorted(others))}, which don't look at this rule"
        if uses[name] > 1:
            yield f"{rule.name}: {name} breaks another rule, too"


def _entries(lab: str) -> dict[str, dict]:
    return tomllib.loads((_CHECKS / lab / "rule_coverage.toml").read_text(encoding="utf-8"))


def _texts(lab: str) -> list[str]:
    """Return the text of each markdown cell but answers, a paragraph or an item a line, without bold and pictures."""
    texts = [c for c in read_lab("solutions", lab).cells if c.cell_type == "markdown"]
    cells = [c.source for c in texts if not c.metadata.nbgrader.solution]
    return ["\n".join(map(_spaced, re.split(r"\n\s*\n|\n(?=\s*(?:[-*|]|\d+\.) )", source))) for source in cells]


def _spaced(words: str) -> str:
    return " ".join(words.replace("**", "").split())


def _sentences(cells: list[str]) -> Iterator[str]:
    for line in (line for cell in cells for line in cell.splitlines()):
        yield from re.split(r"(?<=[.!?:;]) (?=[A-Z`$(])", line)


def _count(words: str, cells: list[str]) -> int:
    return sum(cell.replace("\n", " ").count(words) for cell in cells)


def _overlap(words: str, sentence: str, cells: list[str]) -> bool:
    """Return whether the words and the sentence share a place in the text."""
    for text in (cell.replace("\n", " ") for cell in cells):
        begin, at = text.find(words), text.find(sentence)
        if min(begin, at) >= 0:
            return begin < at + len(sentence) and at < begin + len(words)
    return False
