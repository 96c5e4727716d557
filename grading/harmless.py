"""What a submission shows must not act: its pages are opened by its author's teachers, who are logged in as such.

Two places: outputs lose every form but those that only show something (`without_programs`, as they come out of the
box), and HTML, of outputs and of Markdown cells, is cleaned when a page is made of it (`clean_html`, which
`nbgrader_config` puts in the place of nbconvert's, whose list lacks headings and tables).
"""

import re

import bleach
from bleach.css_sanitizer import CSSSanitizer
from nbformat import NotebookNode

_SHOWN = {"text/plain", "text/html", "text/markdown", "text/latex", "image/png", "image/jpeg", "image/svg+xml"}
_HEADINGS = ["h1", "h2", "h3", "h4", "h5", "h6"]
_TEXT = ["p", "br", "hr", "div", "span", "pre", "sub", "sup", "del", "s", "u", "kbd", "small", "dl", "dt", "dd", "img"]
_TABLE = ["table", "caption", "thead", "tbody", "tfoot", "tr", "th", "td"]
_TAGS = {*bleach.ALLOWED_TAGS, *_HEADINGS, *_TEXT, *_TABLE, "details", "summary"}
_LINK = re.compile("https?://|mailto:|#")
_ATTRIBUTES = {
    **bleach.ALLOWED_ATTRIBUTES,
    **dict.fromkeys(_HEADINGS, ["id", "class"]),
    **dict.fromkeys(["th", "td"], ["align", "colspan", "rowspan"]),
    "*": ["class", "style"],
    "a": lambda tag, name, value: name == "title" or (name == "href" and bool(_LINK.match(value))),
    "img": lambda tag, name, value: name in ("alt", "width", "height") or (name, value[:11]) == ("src", "data:image/"),
}
_STYLES = ["color", "background-color", "border-left", "border-collapse", "padding", "padding-left", "margin-left"]
_STYLES += ["text-align", "vertical-align", "white-space", "font-weight", "font-style", "font-family", "font-size"]
_CLEANER = bleach.Cleaner(
    tags=_TAGS,
    attributes=_ATTRIBUTES,
    protocols={"http", "https", "mailto", "data"},
    css_sanitizer=CSSSanitizer(allowed_css_properties=_STYLES),
)


def without_programs(output: NotebookNode) -> NotebookNode:
    """Of a rich output: no JavaScript, no widgets, and none of its metadata, which nbconvert writes into tags."""
    if "data" in output:
        output.data = {mime: data for mime, data in output.data.items() if mime in _SHOWN}
        output.metadata = {}
    return output


def clean_html(html: str | bytes) -> str:
    """Text and tables of some HTML, and pictures that it contains itself; other tags become text."""
    return _CLEANER.clean(html.decode() if isinstance(html, bytes) else str(html))
