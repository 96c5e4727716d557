"""The text of a feedback page: formulas are drawn without a script, and nothing that a student typed can run."""

import pytest

from grading.reports.markdown_to_html import LONGEST, markdown2html


@pytest.mark.parametrize(
    ("source", "kept"),
    [
        ("The mean is $\\frac{a}{b}$.", "<mfrac>"),
        ("$$\\sum_r g_r$$", 'display="block"'),
        ("Costs `$5` and `$6`.", "<code>$5</code>"),
        ("From $5 to $ 6 bytes", "From"),
        ("$\\frac{a$ is typed wrongly", "typed wrongly"),
        (f"${'x' * (LONGEST + 1)}$", "xxxxx$"),
        ("a $x < y$ b", "</mi><mo"),
    ],
)
def test_formulas_become_mathml_and_all_else_stays(source, kept):
    assert kept in markdown2html(source)


@pytest.mark.parametrize(
    "source",
    [
        "<script>alert(1)</script>",
        "$<script>alert(1)</script>$",
        '<img src=x onerror="alert(1)">',
        "$\\href{javascript:x}{y}$",
    ],
)
def test_nothing_in_it_can_run(source):
    said = markdown2html(source)
    assert "<script" not in said and "onerror=" not in said and '="javascript' not in said and "style=" not in said
