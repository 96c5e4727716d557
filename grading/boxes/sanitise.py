"""Sanitise a submission's HTML and outputs: teachers open its pages while logged in, so nothing in them may run.

`without_programs` removes every form of an output that can do more than show something, as outputs leave the box.
`clean_html` cleans the HTML of outputs and Markdown cells when a page is made. `nbgrader_config` uses it instead of
nbconvert's cleaner, whose list lacks headings and tables.
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
MOST_HTML, DEEPEST = 1 << 18, 100  # characters, nested tags: unclosed tags take time quadratic in their length
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
_STYLES += [
    "text-align",
    "vertical-align",
    "white-space",
    "font-weight",
    "font-style",
    "font-family",
    "font-size",
    "display",
    "cursor",
]
_CLEANER = bleach.Cleaner(
    tags=_TAGS,
    attributes=_ATTRIBUTES,
    protocols={"http", "https", "mailto", "data"},
    css_sanitizer=CSSSanitizer(allowed_css_properties=_STYLES),
)


def without_programs(output: NotebookNode) -> NotebookNode:
    """Remove JavaScript and widgets from a rich output, and all its metadata, which nbconvert writes into tags."""
    if "data" in output:
        output.data = {mime: data for mime, data in output.data.items() if mime in _SHOWN}
        output.metadata = {}
    return output


def clean_html(html: str | bytes) -> str:
    """Clean HTML: keep text, tables and embedded pictures, and escape other tags; escape everything if cleaning would
    take minutes."""
    text = html.decode() if isinstance(html, bytes) else str(html)
    return _CLEANER.clean(text) if len(text) <= MOST_HTML and _depth(text) <= DEEPEST else escape(text)


def _depth(html: str) -> int:
    """Return how many tags are open at most. Tags that are never closed, or closed in another order, stay open."""
    still_open, most = [], 0
    for closes, tag in _TAG.findall(html.lower()):
        if not closes and tag not in _VOID:
            still_open.append(tag)
            most = max(most, len(still_open))
        elif still_open[-1:] == [tag]:
            still_open.pop()
    return most
