"""Pages made of a submission: they show it, and nothing of it runs in the browser of whoever opens them."""

from html import escape

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbconvert.exporters import HTMLExporter
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from submissions import ROOT
from traitlets.config import PyFileConfigLoader

from grading.boxes.notebook_runner_client import _read
from grading.boxes.sanitise_html_and_outputs import clean_html
from grading.judge.verdict import Verdict

MARK = "hacked()"
IN_HTML = [
    f"<script>{MARK}</script>",
    f'<img src="x" onerror="{MARK}">',
    f'<img src="https://elsewhere.example/{MARK}.png">',
    f'<svg onload="{MARK}"><script>{MARK}</script></svg>',
    f'<a href="javascript:{MARK}">here</a>',
    f'<a href=" java\tscript:{MARK}">here</a>',
    f'<a href="data:text/html,<script>{MARK}</script>">here</a>',
    f'<iframe srcdoc="<script>{MARK}</script>"></iframe>',
    f'<form action="{MARK}"><button>OK</button></form>',
    f"<style>* {{ background: url({MARK}) }}</style>",
    f'<details open ontoggle="{MARK}">x</details>',
    f'<div style="background: url({MARK}); position: fixed">x</div>',
    f'<meta http-equiv="refresh" content="0; url={MARK}">',
]
IN_OUTPUTS = {
    "application/javascript": MARK,
    "text/vnd.mermaid": f"<script>{MARK}</script>",
    "application/vnd.jupyter.widget-view+json": {"model_id": f"</script><script>{MARK}"},
    "text/latex": f"$x$ <script>{MARK}</script>",
    "image/svg+xml": f"<svg xmlns='http://www.w3.org/2000/svg'><script>{MARK}</script></svg>",
    "image/png": f'" onerror="{MARK}',
}


def page_of(nb: nbformat.NotebookNode) -> BeautifulSoup:
    config = PyFileConfigLoader("nbgrader_config.py", path=str(ROOT / "grading")).load_config()
    return BeautifulSoup(HTMLExporter(config=config).from_notebook_node(nb)[0], "html.parser")


def programs(page: BeautifulSoup) -> list[str]:
    """What of the submission's would run, be fetched or sent somewhere."""
    found = [str(t) for t in page.find_all(["script", "style", "iframe", "form", "meta", "object"]) if MARK in str(t)]
    for tag in page.find_all(True):
        for name, value in tag.attrs.items():
            acts = name.startswith("on") or name in ("src", "href", "srcdoc", "action", "style", "content")
            if acts and MARK in str(value) and not str(value).startswith(("#", "data:image/")):
                found.append(f"{tag.name} {name}={value}")
    return found


@pytest.mark.parametrize("html", IN_HTML)
def test_html_in_a_markdown_cell_or_an_output_does_not_act(html):
    shown = new_output("display_data", {"text/html": html})
    nb = new_notebook(cells=[new_markdown_cell(f"before\n\n{html}\n\nafter"), new_code_cell("1", outputs=[shown])])
    page = page_of(nb)
    assert programs(page) == []
    assert "before" in page.text


OPEN = {"tags": "<b><p>x" * 3000, "after a comment": "<!-->" + "<b><p>" * 3000, "long": "<p>x</p>" * 40_000}


@pytest.mark.parametrize("html", OPEN.values(), ids=OPEN)
def test_html_that_would_take_minutes_to_clean_is_shown_as_text(html):
    assert clean_html(html) == escape(html)


@pytest.mark.parametrize("mime", IN_OUTPUTS)
def test_an_output_that_is_a_program_is_not_kept(mime):
    metadata = {mime: {"width": f"1 onerror={MARK}"}}
    output = new_output("display_data", {mime: IN_OUTPUTS[mime], "text/plain": "shown"}, metadata=metadata)
    run = _read({"answers": {}, "cells": [{"outputs": [output], "execution_count": 1}]}, 1)
    nb = new_notebook(cells=[new_code_cell("1", outputs=run.cells[0].outputs)])
    assert programs(page_of(nb)) == []


def test_a_formula_leads_nowhere():
    """MathJax is told so, whose \\href would take any address: by nbconvert's templates, and so by nbgrader's."""
    page = page_of(new_notebook(cells=[new_markdown_cell(r"$\href{javascript:1}{x}$")]))
    (source,) = (t["src"] for t in page.find_all("script", src=True) if "mathjax" in t["src"])
    assert source.endswith(",Safe")


def test_text_tables_figures_and_verdicts_are_shown_as_they_were():
    figures = {"late by": ("3 ms", "1 ms")}
    verdict = Verdict("lab2.plan", 1, 3, "so late", "Traceback <module>", figures, picture="BBBB")
    shown = new_output("display_data", {"text/html": verdict.html(), "text/plain": verdict.text()})
    source = "## A *heading*\n\n| a | b |\n|---|---|\n| 1 | `x < y` |\n\n![](data:image/png;base64,AAAA)\n\n1. one"
    page = page_of(new_notebook(cells=[new_markdown_cell(source), new_code_cell("1", outputs=[shown])]))
    assert page.h2.em.text == "heading"
    assert page.ol.li.text.strip() == "one"
    assert page.find("img", src="data:image/png;base64,AAAA")
    assert [cell.text for cell in page.table.find_all("td")] == ["1", "x < y"]
    assert page.find("img", src="data:image/png;base64,BBBB", alt=True)
    assert page.details.pre.text == "Traceback <module>"
    assert "3 ms" in page.find_all("table")[1].text
    assert page.find("b", style=True).text == "PARTIAL"
    assert clean_html(verdict.html()).count("<") == verdict.html().count("<") + 2  # a <tbody> is added
