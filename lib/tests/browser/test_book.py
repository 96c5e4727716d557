"""The site for readers in a real browser, from files: formulas, outputs, links, search, and a dark mode.

For `make look`. One small lesson stands in for all of them, but for one test: what they say is for `make course`.
"""

import base64
import io
import shutil

import nbformat
import pytest
from course_copy import ROOT
from nbformat import from_dict
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image, ImageStat

from shardcourse.figures.style import figure
from shardcourse.lessons.book import SITE, add_texts, as_page, typeset, write_index
from shardcourse.lessons.tidy import KERNEL

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore:.*Check CHANGES for Sphinx:DeprecationWarning"),  # its extensions' affair
    pytest.mark.filterwarnings("ignore:.*Check CHANGES for Sphinx:PendingDeprecationWarning"),
]
LESSON = """# 0. A lesson

**What is a zebrafinch?**

About 7 minutes.

A formula: $a^2 = \\frac{1}{2}$. [The appendix](appendix_claims_on_trial.ipynb)."""

COURSE = """# The course

## The lessons

### Ground

| | lesson | its question | minutes |
|--:|---|---|--:|
| 10a | [A lesson](00_start_here.ipynb) | What is a zebrafinch? And where does it live, if it lives at all? | 7 |

### Appendix

| | lesson | its question | minutes |
|--:|---|---|--:|
|  | [Appendix](appendix_claims_on_trial.ipynb) | | 3 |
"""

N_LINES = """cell => {
    const words = document.createRange();
    words.selectNodeContents(cell);
    return words.getClientRects().length;
}"""

SIDES = """() => {
    const column = document.querySelector("article div.math");
    const [all, formula] = [column, column.querySelector("math")].map(e => e.getBoundingClientRect());
    return [formula.left - all.left, all.right - formula.right];
}"""


def write(path, cells) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(as_page(new_notebook(cells=cells, metadata=from_dict(KERNEL))), path)


def drawn():
    """The output of a cell that draws a wide figure."""
    with figure(7.4, 2) as (fig, ax):
        ax.plot([0, 1])
        ax.set(title="A zebrafinch's weight", xlabel="days", ylabel="grams")
    png, metadata = fig._repr_png_()
    data = {"image/png": base64.b64encode(png).decode(), "text/plain": repr(fig)}
    return new_output("display_data", data, metadata={"image/png": metadata})


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    pages = tmp_path_factory.mktemp("book") / "pages"
    shutil.copytree(SITE, pages)
    output = new_output("stream", name="stdout", text="42 bytes")
    rows = [new_output("stream", name="stdout", text=f"row {i}\n") for i in (1, 2)]
    made = new_output("display_data", {"text/markdown": "| call | n |\n|:--|--:|\n| reduce | 7 |"})
    write(
        pages / "course" / "00_start_here.ipynb",
        [
            new_markdown_cell(LESSON),
            new_code_cell("import torch"),
            new_code_cell("f()", outputs=[output]),
            new_code_cell(f"long = '{'x' * 80}'"),
            new_code_cell("draw()", outputs=[drawn()]),
            new_code_cell("g()", outputs=[*rows, made]),
            new_markdown_cell(
                "$$ a + \\text{a\\_b} $$\n\n| key | is |\n|---|---|\n| `set_requires_gradient_sync` | a switch |"
            ),
            new_markdown_cell(f"| wide | table |\n|---|---|\n| `{'x' * 40}` | `{'y' * 40}` |"),
        ],
    )
    write(pages / "course" / "appendix_claims_on_trial.ipynb", [new_markdown_cell("# Appendix\n\nWhich claims?")])
    (pages / "labs").mkdir()
    (pages / "labs" / "README.md").write_text("# The labs\n")
    for name in ("lab10_x", "lab2_y"):
        write(pages / "labs" / name / f"{name}.ipynb", [new_markdown_cell(f"# {name}")])
    (pages / "course" / "README.md").write_text(COURSE)
    (pages / "course" / "SOURCES.md").write_text("# Sources\n")
    (pages / "course" / "messages.md").write_text("# Error messages\n")
    (pages / "course" / "questions.md").write_text("# Questions\n")
    (pages / "course" / "from_hugging_face.md").write_text("# From Hugging Face\n")
    shutil.copyfile(ROOT / "lib" / "pictures" / "ddp_buckets.png", pages / "ddp_buckets.png")
    write_index(pages / "index.md", pages / "course")
    return pages


@pytest.fixture(scope="module")
def page(chromium, pages):
    assert typeset(pages, pages.parent / "html")
    page = chromium.new_page(color_scheme="light")
    page.fetched = []
    page.on("request", lambda request: page.fetched.append(request.url))
    page.start = f"file://{pages.parent}/html/index.html"
    return page


def test_a_reader_finds_the_lesson_by_its_question(page):
    page.goto(page.start)
    assert "What is a zebrafinch?" in page.inner_text("article")
    page.click("article >> text=0. A lesson")
    assert "42 bytes" in page.inner_text("article")
    assert page.locator("article math").first.bounding_box()["height"] > 10
    page.click("article >> text=The appendix")
    assert page.inner_text("h1").startswith("Appendix")


def test_the_first_page_says_how_long_a_lesson_takes_and_in_which_part_it_is(page):
    page.goto(page.start)
    assert "(about 7 minutes)" in page.inner_text("article") and "Ground" in page.inner_text("article h2")
    assert "Ground" in page.inner_text("nav.bd-links")


def test_a_figure_keeps_its_shape_and_nothing_scrolls_sideways_on_a_phone(page):
    page.goto(page.start.replace("index.html", "course/00_start_here.html"))
    page.set_viewport_size({"width": 390, "height": 800})
    shape = page.locator("article img").bounding_box()
    assert abs(shape["width"] / shape["height"] - 3.7) < 0.05 and shape["width"] < 390
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1280, "height": 800})
    assert page.locator("article img").bounding_box()["width"] == 740


def shades(page, box) -> tuple[float, float]:
    """How dark the left and right end of a box are, above its words: 0 is white."""
    at = box.bounding_box()
    ends = []
    for x in (at["x"] + 3, at["x"] + at["width"] - 6):
        picture = page.screenshot(clip={"x": x, "y": at["y"] + 4, "width": 3, "height": 3})
        ends.append(255 - ImageStat.Stat(Image.open(io.BytesIO(picture)).convert("L")).mean[0])
    return ends[0], ends[1]


@pytest.mark.parametrize("kind", ["table:has-text('wide')", ".highlight pre:has-text('long')"])
def test_a_shade_shows_on_which_side_a_wide_box_goes_on(page, kind):
    page.goto(page.start.replace("index.html", "course/00_start_here.html"))
    page.set_viewport_size({"width": 390, "height": 800})
    box = page.locator(f"article {kind}")
    box.scroll_into_view_if_needed()
    left, right = shades(page, box)
    assert right > left + 10
    box.evaluate("box => box.scrollLeft = box.scrollWidth")
    left, right = shades(page, box)
    assert left > right + 10
    page.set_viewport_size({"width": 2400, "height": 800})
    box.scroll_into_view_if_needed()
    left, right = shades(page, box)
    assert abs(left - right) < 10


def test_a_short_word_in_a_table_stays_on_one_line(page):
    page.goto(page.start.replace("index.html", "course/README.html"))
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        for word in ("10a", "minutes"):
            cell = page.get_by_role("table").first.get_by_text(word, exact=True).first
            assert cell.evaluate(N_LINES) == 1, (word, width)


def test_rows_of_one_cell_stand_together_and_a_table_that_it_makes_is_one(page):
    page.goto(page.start.replace("index.html", "course/00_start_here.html"))
    assert page.locator("article pre:has-text('row 1')").inner_text().split("\n")[:2] == ["row 1", "row 2"]
    assert page.locator("article td:has-text('reduce')").count() == 1


def test_a_name_in_a_table_is_not_cut_and_a_formula_stands_in_the_middle(page):
    page.goto(page.start.replace("index.html", "course/00_start_here.html"))
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.locator("td code .pre").first.evaluate(N_LINES) == 1, width
        left, right = page.evaluate(SIDES)  # at one moment: a bar may still slide
        assert abs(left - right) < 2, width
    assert page.inner_text("article div.math").replace("\n", "").endswith("a_b")


def test_labs_are_listed_by_their_numbers(page):
    page.goto(page.start)
    listed = page.inner_text("nav.bd-links")
    assert listed.index("lab2_y") < listed.index("lab10_x")


def test_a_picture_has_words_and_imports_are_folded(page):
    page.goto(page.start.replace("index.html", "course/00_start_here.html"))
    assert page.get_attribute("article img", "alt") == "Figure. A zebrafinch's weight. axes: days, grams"
    assert not page.locator("article >> text=import torch").is_visible()


def test_search_answers_without_a_server(page):
    page.goto(page.start.replace("index.html", "search.html?q=zebrafinch"))
    page.wait_for_selector(".search >> text=0. A lesson", timeout=10_000)


def test_dark_mode_follows_the_system(page):
    shades = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.goto(page.start)
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        shades[scheme] = sum(map(float, colour.removeprefix("rgb(").rstrip(")").split(",")))
    assert shades["dark"] < 150 < 600 < shades["light"]


def test_nothing_is_fetched_from_the_web(page):
    page.goto(page.start)
    assert page.fetched and not [url for url in page.fetched if not url.startswith(("file:", "data:"))]


def test_a_link_to_nowhere_is_an_error(pages, tmp_path):
    shutil.copytree(pages, tmp_path / "pages")
    write(tmp_path / "pages" / "course" / "01_x.ipynb", [new_markdown_cell("# 1. X\n\n[there](07_not_there.ipynb)")])
    assert not typeset(tmp_path / "pages", tmp_path / "html")


@pytest.mark.parametrize("address", ["", "https://github.com/somebody/shardlab"])
def test_a_page_can_be_opened_on_a_host_if_the_project_has_an_address(pages, address, tmp_path, monkeypatch):
    urls = f'urls.Repository = "{address}"' if address else ""
    (tmp_path / "pyproject.toml").write_text(f"[project]\n{urls}")
    monkeypatch.setattr("shardcourse.repository.ROOT", tmp_path)
    assert typeset(pages, tmp_path / "html")
    page = (tmp_path / "html" / "course" / "00_start_here.html").read_text()
    for host in ("https://colab.research.google.com/github", "https://mybinder.org/v2/gh"):
        assert (f"{host}/somebody/shardlab" in page) == bool(address)
    notebook = "somebody/shardlab/blob/main/course/00_start_here.ipynb"
    assert (notebook in page) == bool(address)


@pytest.mark.timeout(600)
def test_every_page_of_the_course_can_be_typeset_and_read_on_a_phone(chromium, tmp_path):
    """A dollar that begins no formula, or a link to nowhere, would end the book. A long name would widen a page."""
    pages, html = tmp_path / "pages", tmp_path / "html"
    shutil.copytree(SITE, pages)
    add_texts(pages)
    for lesson in (ROOT / "course").glob("*.ipynb"):
        write(pages / "course" / lesson.name, nbformat.read(lesson, as_version=4).cells)
    write_index(pages / "index.md", ROOT / "course")
    assert typeset(pages, html)
    phone = chromium.new_page(viewport={"width": 390, "height": 844})
    too_wide = []
    for file in [*html.glob("*/*.html"), *html.glob("labs/*/*.html")]:
        phone.goto(f"file://{file}")
        if phone.evaluate("document.documentElement.scrollWidth") > 390:
            too_wide.append(file.stem)
    assert too_wide == []
