"""Sanitise a submission's HTML and outputs: teachers open its pages while logged in, so nothing in them may run.

`without_programs` removes every form of an output that can do more than show something, as outputs leave the box.
`clean_html` cleans the HTML of outputs and Markdown cells when a page is made. `nbgrader_config` uses it instead of
nbconvert's cleaner, whose list lacks headings and tables. It leaves no border, no colour and no class of the page's, so
that what a submission shows can't look like a verdict. `verdict_html` is for verdicts, which keep theirs.
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
_OF_CODE = re.compile(r"(highlight|hl-ipython3|dataframe|[a-z]{1,2}[0-9]?)( |$)")  # classes, and pandas' for tables
_PICTURE = re.compile("data:image/[a-z+]+;base64,[A-Za-z0-9+/=]*")
_ATTRIBUTES = {
    **bleach.ALLOWED_ATTRIBUTES,
    **dict.fromkeys(["th", "td"], ["align", "colspan", "rowspan"]),
    "*": lambda tag, name, value: name == "style" or (name == "class" and not _OF_CODE.sub("", value)),
    "a": lambda tag, name, value: name == "title" or (name == "href" and bool(_LINK.match(value))),
    "img": lambda tag, name, value: name in ("alt", "width", "height") or (name, value[:11]) == ("src", "data:image/"),
}
_LAYOUT = ["padding", "padding-left", "margin-left", "text-align", "vertical-align", "white-space", "font-style"]
_OF_VERDICTS = ["color", "border-left", "display", "cursor"]


def _cleaner(attributes: dict, styles: list[str]) -> bleach.Cleaner:
    return bleach.Cleaner(
        tags=_TAGS,
        attributes=attributes,
        protocols={"http", "https", "mailto", "data"},
        css_sanitizer=CSSSanitizer(allowed_css_properties=styles),
    )


_CLEANER = _cleaner(_ATTRIBUTES, _LAYOUT)
_CLEANER_OF_VERDICTS = _cleaner(_ATTRIBUTES, _LAYOUT + _OF_VERDICTS)
PLAIN_FILTERS = ("markdown2html", "clean_html", "highlight_code", "ansi2html")  # `as_text` may stand in their place


def without_programs(output: NotebookNode) -> NotebookNode:
    """Remove JavaScript and widgets from a rich output, and all its metadata, which nbconvert writes into tags."""
    if "data" in output:
        output.data = {mime: data for mime, data in output.data.items() if mime in _SHOWN}
        output.metadata = {}
    return output


def clean_html(html: str | bytes) -> str:
    """Clean a submission's HTML: keep text, tables and embedded pictures, and escape other tags; escape everything if
    cleaning would take minutes."""
    return _clean(html, _CLEANER)


def verdict_html(html: str) -> str:
    """Clean a verdict's HTML, which may have its colours."""
    return _clean(html, _CLEANER_OF_VERDICTS)


def as_text(text: str | bytes, *_, **__) -> str:
    """Show a submission's text as it was typed, for a page whose filters failed or took too long."""
    return f"<pre>{escape(text.decode() if isinstance(text, bytes) else str(text))}</pre>"


def _clean(html: str | bytes, cleaner: bleach.Cleaner) -> str:
    text = html.decode() if isinstance(html, bytes) else str(html)
    short = len(_PICTURE.sub("", text)) <= MOST_HTML and _depth(text) <= DEEPEST
    return cleaner.clean(text) if short else escape(text)


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
