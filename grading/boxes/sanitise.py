"""What a submission shows must not act: its pages are opened by its author's teachers, who are logged in as such.

Two places: outputs lose every form but those that only show something (`without_programs`, as they come out of the
box), and HTML, of outputs and of Markdown cells, is cleaned when a page is made of it (`clean_html`, which
`nbgrader_config` puts in the place of nbconvert's, whose list lacks headings and tables).
"""

import re
from html import escape

import bleach
from bleach.css_sanitizer import CSSSanitizer
from nbformat import NotebookNode

_SHOWN = {"text/plain", "text/html", "text/markdown", "text/latex", "image/png", "image/jpeg", "image/svg+xml"}
_HEADINGS = ["h1", "h2", "h3", "h4", "h5", "h6"]
_TEXT = ["p", "br", "hr", "div", "span", "pre", "sub", "sup", "del", "s", "u", "kbd", "small", "dl", "dt", "dd", "img"]
_TABLE = ["table", "caption", "thead", "tbody", "tfoot", "tr", "th", "td"]
_TAGS = {*bleach.ALLOWED_TAGS, *_HEADINGS, *_TEXT, *_TABLE, "details", "summary"}
_TAG = re.compile("<(/?)([a-z][^\\s/>]*)")
_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
MOST_HTML, DEEPEST = 1 << 18, 100  # characters, and tags in tags: what is never closed takes the square of its length
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
    """Text and tables of some HTML, and pictures that it contains itself; other tags become text, and all of them where
    cleaning would take minutes."""
    text = html.decode() if isinstance(html, bytes) else str(html)
    return _CLEANER.clean(text) if len(text) <= MOST_HTML and _depth(text) <= DEEPEST else escape(text)


def _depth(html: str) -> int:
    """How many tags are open at a time, at most; those count that are never closed, or in another order."""
    still_open, most = [], 0
    for closes, tag in _TAG.findall(html.lower()):
        if not closes and tag not in _VOID:
            still_open.append(tag)
            most = max(most, len(still_open))
        elif still_open[-1:] == [tag]:
            still_open.pop()
    return most
