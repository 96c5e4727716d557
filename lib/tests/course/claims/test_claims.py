"""Every claim is tried again; no verdict stands that its check does not give; planted mistakes are found."""

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer import Typer
from typer.testing import CliRunner

from shardcourse import claims as package
from shardcourse.claims import Claim, Trial, charts, claims, held, numbers, seconds, sent, sharded, try_claim
from shardcourse.claims.claim import SHOWN_BY, VERDICTS
from shardcourse.claims.table import ClaimsPage, claims_table, found_in_short, in_words, one_claim, said
from shardcourse.claims.trial import agree, check_of
from shardcourse.cli.claims import claims_command
from shardlab.model import Transformer
from shardplan.formulas import Expected, units_of

ALL = claims()
SLOW = (  # checks, or modules of them
    "simulated",  # times on a simulated network
    "sharded",  # every engine on four ranks
    "recomputed",  # models of up to 16 layers, trained twice each
)
PAGES = ("000", "001", "002", "003", "004")


def problems(found: Iterable[Claim]) -> list[str]:
    """Each names its claim."""
    return [problem for claim in found for problem in try_claim(claim).problems]


def is_slow(claim: Claim) -> bool:
    return claim.check in SLOW or claim.check.split(".")[0] in SLOW


def test_claims_are_as_the_file_says():
    assert problems(c for c in ALL.values() if not is_slow(c)) == []


@pytest.mark.night
def test_slow_claims_are_as_the_file_says():
    assert problems(c for c in ALL.values() if is_slow(c)) == []


# ------------------------------------------------------------------------------------------------------------- the file


def test_the_file_covers_the_pages_and_the_lessons():
    assert len(ALL) >= 100
    found = {source.split()[0] for c in ALL.values() for source in c.sources}
    assert found == set(PAGES)
    assert {c.shown_by for c in ALL.values()} == set(SHOWN_BY)
    assert {c.verdict for c in ALL.values()} == set(VERDICTS)
    lessons = {c.lesson for c in ALL.values()}
    assert lessons >= {1, *range(3, 12), 13, 14, 15}


def test_a_claim_is_for_people():
    """Plain words of a sentence or two, and findings that differ in what is named."""
    for c in ALL.values():
        assert c.truth.endswith(".") and 15 < len(c.truth) < 320, c.id
        assert 10 < len(c.claim) < 140 and not c.claim.endswith("."), c.id
        assert all(c.found) and c.found, c.id
        assert re.fullmatch(r"[a-z0-9-]+", c.id), c.id


def test_every_check_is_used_and_every_public_function_is_a_check():
    """But for helpers that others share."""
    used = {c.check for c in ALL.values()}
    helpers = {"evidence", "volume", "step", "fsdp_reduces_in"}  # `exercises` asks for the last three
    for file in Path(package.__file__).parent.glob("*.py"):
        if file.stem in ("__init__", "claim", "trial", "planned", "exercises", "table", "charts"):
            continue
        functions = re.findall(r"^def ([a-z]\w*)\(", file.read_text(), re.M)
        unused = {name for name in functions if f"{file.stem}.{name}" not in used} - helpers
        assert not unused, file.stem


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"verdict": "right"}, "verdict='right'"),
        ({"lesson": 16}, "lesson=16"),
        ({"shown_by": "me"}, "shown_by='me'"),
    ],
)
def test_a_field_out_of_range_is_named(change, word):
    with pytest.raises(ValueError, match=re.escape(word)):
        replace(next(iter(ALL.values())), **change)


def written(tmp_path, *entries: str) -> Path:
    file = tmp_path / "claims.toml"
    file.write_text("".join(f"[[claim]]\n{entry}\n" for entry in entries))
    return file


ENTRY = """id = "a"
sources = ["000 1"]
claim = "one is one"
says = 1
check = "numbers.product"
given = { of = [1, 1] }
shown_by = "plan"
lesson = 1
verdict = "holds"
found = { "1 x 1" = 1 }
truth = "It is."
"""


def test_a_file_is_read_and_tried(tmp_path):
    (claim,) = claims(written(tmp_path, ENTRY)).values()
    assert try_claim(claim).problems == ()


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ((ENTRY, ENTRY), "two claims have the id 'a'"),
        ((ENTRY.replace("lesson = 1\n", ""),), "'a': these fields are missing or unknown: lesson"),
        ((ENTRY + "veridct = 3\n",), "missing or unknown: veridct"),
    ],
)
def test_a_broken_file_is_refused(tmp_path, entries, message):
    with pytest.raises(ValueError, match=message):
        claims(written(tmp_path, *entries))


# ------------------------------------------------------------------------------------------------- planted mistakes


def as_filed(claim: Claim) -> Trial:
    """A trial that found exactly what the file says: what is planted now is found by the comparison alone."""
    return Trial(claim, dict(claim.found))


def test_a_wrong_verdict_is_caught():
    for claim in ALL.values():
        assert as_filed(claim).problems == ()
        for other in set(VERDICTS) - {claim.verdict}:
            found = as_filed(replace(claim, verdict=other)).problems
            assert any("verdict" in p and claim.id in p for p in found), claim.id


def test_a_finding_that_has_changed_is_caught():
    for claim in ALL.values():
        for when, value in claim.found.items():
            if isinstance(value, bool):
                others = [not value]
            elif isinstance(value, str):
                others = [f"not {value}"]
            else:  # as far as it may stray, and a little farther
                farther = 1.01 * claim.tolerance * abs(value) + 1e-9
                others = [1.5 * value + 1, value + farther, value - farther]
                near = Trial(claim, claim.found | {when: value + 0.99 * claim.tolerance * abs(value)})
                assert not any("found was" in p for p in near.problems), (claim.id, when)
            for other in others:
                found = Trial(claim, claim.found | {when: other}).problems
                assert any(when in p and claim.id in p and "found was" in p for p in found), (claim.id, when, other)
        assert Trial(claim, claim.found | {"under the moon": 1}).problems, claim.id


def test_a_claim_put_right_is_no_longer_wrong():
    """Had the page said what was found, the verdict would be another: it hangs on what is said."""
    wrong = [c for c in ALL.values() if c.verdict == "wrong"]
    assert wrong
    for claim in wrong:
        right = replace(claim, says=next(iter(claim.found.values())))
        assert as_filed(right).verdict != "wrong", claim.id


# ------------------------------------------------------------------------------------------------------- the verdict


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ({"a": 34, "b": 34}, "holds"),
        ({"a": 34, "b": 68}, "holds under conditions"),
        ({"a": 68}, "wrong"),
    ],
)
def test_a_verdict_follows_from_what_agrees(found, verdict):
    claim = replace(ALL["zero-1-8b-34-gb"], says=34)
    assert Trial(claim, found).verdict == verdict


def test_numbers_agree_within_a_share_of_what_is_said():
    assert agree(100, 105, 0.05) and agree(100, 95, 0.05)
    assert not agree(100, 106, 0.05) and not agree(100, 94, 0.05)
    assert agree((20, 40), 19.1, 0.05) and agree((20, 40), 41.9, 0.05)
    assert not agree((20, 40), 18.9, 0.05) and not agree((20, 40), 42.1, 0.05)
    assert agree(0, 0, 0.05) and not agree(0, 1, 0.05)


def test_yes_is_not_one():
    assert not agree(True, 1, 0.05) and not agree(1, True, 0.05) and not agree("yes", True, 0.05)
    assert agree(True, True, 0) and agree("yes", "yes", 0) and not agree("yes", "maybe", 0)


def test_a_check_that_finds_nothing_is_no_verdict():
    empty = replace(
        ALL["full-ft-8-sequences-a-step"], check="numbers.bubble", given=(("stages", 2), ("micro_batches", []))
    )
    with pytest.raises(ValueError, match="found nothing"):
        try_claim(empty)


def test_a_check_that_does_not_exist_is_named():
    for check in ("held.nothing", "nowhere.states"):
        with pytest.raises(ValueError, match=check):
            check_of(replace(ALL["zero-1-8b-34-gb"], check=check))


def test_an_error_in_a_check_says_whose_it_is():
    with pytest.raises(ValueError) as error:
        try_claim(replace(ALL["zero-1-8b-34-gb"], given=(("model", "8C"), ("gpus", 16), ("sharding", "ZERO_1"))))
    assert "zero-1-8b-34-gb" in error.value.__notes__[0]


# ------------------------------------------------------------------------------- the checks, beside another derivation


@pytest.mark.parametrize("sharding", ["DDP", "ZERO_1", "ZERO_2", "FULL_SHARD"])
def test_states_are_those_of_the_strategies_formulas(sharding):
    """`measure.strategies` counts them by itself, in fp32 and with a master copy: 12 bytes of states."""
    for precision, state_bytes, dtype in (("fp32", 8, torch.float32), ("bf16-master", 12, torch.bfloat16)):
        numel = 8_030_261_248
        expected = Expected(sharding, [[torch.empty(numel, dtype=dtype, device="meta")]], 16, state_bytes=state_bytes)
        total = (expected.parameters + expected.gradients + expected.optimizer_states) / 1e9
        assert held.states("8B", 16, sharding, precision) == {"as planned": pytest.approx(total, rel=1e-3)}


@pytest.mark.night
def test_what_is_measured_is_what_the_formulas_say():
    with torch.device("meta"):
        model = Transformer(sharded.CONFIG)
    for engine, sharding in (("DDP", "DDP"), ("ZeRO-2", "ZERO_2"), ("FULL_SHARD", "FULL_SHARD")):
        wire = Expected(sharding, units_of(model, model.blocks), sharded.WORLD_SIZE).wire_bytes / sharded.PSI
        assert sharded.sent(engine) == {"4 ranks": pytest.approx(wire)}


def test_the_limits_of_overlap():
    """Without messages nothing is gained, nor where all of it is messages; never more than all computation hides."""
    found = list(seconds.gained_by_overlap([1e-6, 0.6, 1e6]).values())
    assert found[0] < 1e-5 and found[2] < 1e-5 < found[1] < 1


def test_the_curve_of_prefetch_has_its_top_where_messages_just_fit():
    """Forward 1, backward 2, gather and scatter g each: with prefetch 2g hide behind 2, so g = 1 gains most."""
    gains = list(seconds.gained_by_prefetch([0.25, 0.5, 1.0, 2.0, 4.0]).values())
    assert max(gains) == gains[2] and gains[:3] == sorted(gains[:3]) and gains[2:] == sorted(gains[2:], reverse=True)


def test_arithmetic():
    assert numbers.bubble(4, [4, 400]) == {"4 micro-batches": True, "400 micro-batches": False}
    assert sent.in_models("DDP", "8B", 2) == {"as planned": pytest.approx(1.0)}
    assert numbers.steps(2, 3) == {"2 h at 3 steps/s": 21_600}


# ------------------------------------------------------------------------------------------------------------ people


def text(renderable, width: int = 80) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(renderable)
    return console.export_text()


def test_the_table_fits_eighty_columns():
    printed = text(claims_table(list(ALL.values())))
    assert max(map(len, printed.splitlines())) <= 80
    assert f"{len(ALL)} claims" in printed


def test_one_claim_shows_all_that_was_found():
    claim = ALL["zero-1-saves-4x"]
    printed = text(one_claim(claim))
    assert all(in_words(v, "x") in printed for v in claim.found.values()) and "holds under conditions" in printed


def test_the_page_opens_without_a_script_and_escapes():
    page = ClaimsPage([replace(ALL["zero-1-8b-34-gb"], truth="1 < 2.")])._repr_html_()
    assert "Click on a claim" in page and "<details" in page and "<script" not in page
    assert "1 &lt; 2." in page and "✗ wrong" in page


def test_the_page_as_text_says_of_each_claim_what_is_true():
    """A lesson that was exported to text shows no HTML: a mere count would tell the reader nothing."""
    chosen = [ALL["zero-1-8b-34-gb"], ALL["zero-1-saves-4x"]]
    first, *lines = repr(ClaimsPage(chosen)).splitlines()
    assert first.startswith("2 claims: ") and len(lines) == 4
    for claim, said_of_it, truth in zip(chosen, lines[::2], lines[1::2], strict=True):
        assert claim.verdict in said_of_it and claim.claim in said_of_it and truth.strip() == claim.truth


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [(True, "", "yes"), (0.05, "share", "5.0%"), (0.3, "share", "30%"), (68.26, "GB", "68.3 GB"), (2, "x", "2x")],
)
def test_values_in_words(value, unit, words):
    assert in_words(value, unit) == words


def test_ranges_in_words():
    base = ALL["zero-1-8b-34-gb"]
    assert said(replace(base, says=(0.2, 0.3), unit="share")) == "20% to 30%"
    assert said(replace(base, says=(0.5, 1.0), unit="share")) == "at least 50%"
    assert said(replace(base, says=(0, 0.6), unit="x")) == "at most 0.6x"
    assert found_in_short({"a": 1.0, "b": 3.0}, "GB") == "1 to 3 GB"
    assert found_in_short({"a": True, "b": False, "c": False}, "") == "1 yes, 2 no"


@pytest.fixture(scope="module")
def command():
    app = Typer()
    app.command("claims")(claims_command)
    app.command("other")(lambda: None)
    return lambda *args: CliRunner().invoke(app, ["claims", *args])


def test_the_command_lists_and_checks(command, tmp_path):
    file = tmp_path / "claims.json"
    result = command("zero-1-8b-34-gb", "--check", "--json", str(file))
    assert result.exit_code == 0 and "1 tried" in result.output
    (claim,) = json.loads(file.read_text())
    assert claim["verdict"] == "wrong" and claim["found"]["fp32"] == pytest.approx(68.3, rel=0.01)


def test_the_command_fails_where_the_file_is_wrong(command, monkeypatch):
    planted = replace(ALL["zero-1-8b-34-gb"], verdict="holds")
    monkeypatch.setattr("shardcourse.claims.claim.claims", lambda: {"planted": planted})
    result = command("planted", "--check")
    assert result.exit_code == 1 and "the trial's 'wrong'" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["zero-1-8b-43-gb"], "did you mean 'zero-1-8b-34-gb'"),
        (["--verdict", "hold"], "did you mean 'holds'"),
        (["zero-1-8b-34-gb", "--lesson", "3"], "other lessons"),
    ],
)
def test_the_command_names_what_is_wrong(command, args, word):
    result = command(*args)
    assert result.exit_code == 2 and word in result.output and "Traceback" not in result.output


def test_every_claim_is_in_the_bars_once_and_every_finding_in_gb_is_a_point():
    everything = list(claims().values())
    (bars,) = charts.by_lesson(everything).axes
    assert sum(bar.get_width() for bar in bars.patches) == len(everything)
    (points,) = charts.claimed_and_found(everything).axes
    one_number = [c for c in everything if c.unit == "GB" and isinstance(c.says, int | float)]
    in_gb = [v for c in one_number for v in c.found.values()]
    drawn = [line for line in points.lines if line.get_marker() != "None"]
    assert sum(len(line.get_xdata()) for line in drawn) == len(in_gb)
    (kinds,) = charts.by_kind(["unit", "sum", "sum"]).axes
    assert [bar.get_width() for bar in kinds.patches] == [2, 1]
