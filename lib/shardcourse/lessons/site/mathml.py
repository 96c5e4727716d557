"""Formulas as MathML, which browsers show without a script, so that the book can be read offline."""

from docutils.nodes import SkipNode
from latex2mathml import converter
from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True}


def convert(formula: str, display: str = "inline") -> str:
    """Return the formula as MathML. The converter leaves the backslash of an underscore in a text where it is."""
    return converter.convert(formula, display=display).replace("\\_", "_")


def _inline(self, node) -> None:
    self.body.append(convert(node.astext()))
    raise SkipNode


def _block(self, node) -> None:
    self.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>')
    raise SkipNode
