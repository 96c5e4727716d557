"""The text of a feedback page: Markdown as clean HTML, and formulas as MathML, which needs no script and no web."""

import re
from collections.abc import Iterator
from html import unescape
from xml.etree import ElementTree

from jinja2 import pass_context
from latex2mathml.converter import convert
from nbconvert.filters.markdown_mistune import InvalidNotebook, IPythonRenderer, MarkdownWithMath

from grading.boxes.sanitise_html_and_outputs import as_text, clean_html

LONGEST, LONGEST_CELL = 500, 20_000  # characters of a formula, and of a cell; longer ones stay as they were typed
_ELEMENTS = (
    "math mi mn mo mrow mfrac msqrt mroot msub msup msubsup munder mover munderover mtable mtr mtd mtext mspace mstyle"
)
_ATTRIBUTES = (
    "display stretchy fence form mathvariant displaystyle scriptlevel columnalign width minsize maxsize linethickness"
)
_HARMLESS = {*_ELEMENTS.split(), *_ATTRIBUTES.split()}
_CODE = re.compile(r"(<(?:code|pre)\b.*?</(?:code|pre)>)", re.S)
_FORMULA = re.compile(r"\$\$(?P<block>[^$]+?)\$\$|\$(?P<inline>[^$\n]+?)\$")


@pass_context
def markdown_of_cell(context: dict, source: str) -> str:
    """`markdown2html`, with the pictures in the cell. nbgrader's templates use it instead of nbconvert's filter."""
    return markdown2html(source, context.get("cell", {}).get("attachments"))


def markdown2html(source: str, pictures: dict[str, dict[str, str]] | None = None) -> str:
    """Return Markdown as HTML without programs. A long cell stays text: `[a](` repeated takes quadratic time."""
    if len(source) > LONGEST_CELL:
        return as_text(source)
    try:
        renderer = IPythonRenderer(escape=False, attachments=pictures, exclude_anchor_links=True)
        html = MarkdownWithMath(renderer=renderer).render(source)
    except InvalidNotebook:  # a picture is missing
        return as_text(source)
    parts = _CODE.split(clean_html(html))
    return "".join(part if i % 2 else _FORMULA.sub(_mathml, part) for i, part in enumerate(parts))


def _mathml(m: re.Match) -> str:
    latex = unescape(m["block"] or m["inline"])
    if len(latex) > LONGEST:
        return m[0]
    try:
        mathml = convert(latex, display="block" if m["block"] else "inline")
        return mathml if set(_names(mathml)) <= _HARMLESS else m[0]
    except Exception:  # a student may have typed anything between two dollars
        return m[0]


def _names(mathml: str) -> Iterator[str]:
    for element in ElementTree.fromstring(mathml).iter():
        yield from (element.tag.rpartition("}")[2], *element.attrib)
