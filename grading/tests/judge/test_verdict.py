from grading.judge.verdict import Verdict

MIXED = Verdict("lab2.plan", 1.5, 3, "a <b> & c", "line 1\nline 2", {"peak": ("3 MiB", "2 MiB"), "after": ("1", "1")})


def test_the_page_shows_a_students_text_as_text():
    assert "a &lt;b&gt; &amp; c" in MIXED.html()


def test_a_verdict_survives_a_notebook_file():
    assert Verdict.from_json(MIXED.as_json()) == MIXED
    assert list(Verdict.from_json(MIXED.as_json()).figures) == ["peak", "after"]


def test_a_figure_without_a_limit_is_shown_without():
    lines = Verdict("lab2.plan", 3, 3, "fine.", "", {"peak": ("3 MiB", "4 MiB"), "tokens/s": ("12", "")}).text()
    assert lines.splitlines()[2:] == ["  peak: 3 MiB (allowed: 4 MiB)", "  tokens/s: 12"]


def test_partial_points_are_partial_and_noise_is_no_fail():
    assert MIXED.word == "PARTIAL"
    assert Verdict("lab2.plan", 0, 3, "noisy", inconclusive=True).word == "INCONCLUSIVE"


def test_what_a_submission_made_long_is_cut():
    verdict = Verdict("lab2.plan", 0, 3, "x" * 1_000_000, "y" * 1_000_000)
    assert len(verdict.text()) < 30_000
