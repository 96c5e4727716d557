"""Each lab's table of rules: every sentence that sounds like a rule has a check, and each rule two who break it."""

import pytest
from submissions import LABS, ROOT

from grading.samples import rule_coverage

WITH_A_TABLE = [lab for lab in LABS if (ROOT / "grading" / "checks" / lab / "rule_coverage.toml").exists()]


@pytest.mark.parametrize("lab", WITH_A_TABLE)
def test_every_rule_of_the_text_has_a_check_and_two_who_break_it_alone(lab):
    assert rule_coverage.faults(lab) == []


TEXT = ["Write `f`.\n1. It must be **fast**: at most 3 s.\n2. It may print.", "Nothing else is asked."]
TABLE = {
    "fast": {"says": "at most 3 s", "checks": ["lab5.wire"], "mutants": ["autocast", "reduces_in_bf16"]},
    "_no_rules": {"It may print": "a permission"},
}


def faults_of(monkeypatch, table: dict, text=TEXT) -> list[str]:
    monkeypatch.setattr(rule_coverage, "_entries", lambda lab: {name: dict(entry) for name, entry in table.items()})
    monkeypatch.setattr(rule_coverage, "_texts", lambda lab: [cell.replace("**", "") for cell in text])
    found = rule_coverage.faults("lab5_precision_recompute")
    return [words for words in found if "looks at no rule" not in words]


def test_a_whole_table_has_only_checks_without_a_rule(monkeypatch):
    changed = TABLE | {"fast": TABLE["fast"] | {"mutants": ["reduces_in_bf16", "one_rate_frozen"]}}
    assert faults_of(monkeypatch, changed) == []


@pytest.mark.parametrize(
    "change, words",
    [
        ({"says": "at most 4 s"}, "the text has these words 0 times"),
        ({"says": "at most 4 s"}, "a sentence without a rule: 'It must be fast:"),
        ({"says": "may print"}, "an item without a rule: '1. It must be fast"),
        ({"checks": ["lab5.speed"]}, "no check is called lab5.speed"),
        ({"checks": ["lab5.wire", "lab5.held"]}, "no mutant loses points by each of lab5.wire, lab5.held"),
        ({"mutants": ["reduces_in_bf16"]}, "1 mutants"),
        ({"mutants": ["reduces_in_bf16", "nobody"]}, "no sample is called nobody"),
        ({"mutants": ["reduces_in_bf16", "offloads_to_numpy"]}, "offloads_to_numpy loses no points by lab5.wire"),
        ({"mutants": ["reduces_in_bf16", "autocast"]}, "loses points by lab5.budget, which don't look at this rule"),
    ],
)
def test_a_hole_in_the_table_is_named(monkeypatch, change, words):
    found = faults_of(monkeypatch, TABLE | {"fast": TABLE["fast"] | change})
    assert any(words in fault for fault in found), found


def test_a_sentence_that_is_left_out_is_named(monkeypatch):
    assert any("It may print" in fault for fault in faults_of(monkeypatch, {"fast": TABLE["fast"]}))
