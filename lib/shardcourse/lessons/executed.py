"""Checks of an executed lesson: its outputs are clean, and its cells back the numbers in its prose."""

import html
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nbformat import NotebookNode

from shardcourse.lessons.cells import code_cells, markdown

_NUMBER = re.compile(r"(?<![\w.,])(\d+(?:,\d{3})+|\d+)(\.\d+)?(?![\w.]*\d)")
_UNIT = re.compile(r"\s*(%|×|times\b|[kKMGTP]i?B\b|bytes\b|[µm]?s\b|[kMGT]?b/s\b|seconds\b|tokens\b|[TGP]?FLOP)")
_NOT_PROSE = re.compile(
    r"<!--.*?-->|```.*?```|`[^`\n]*`|\$\$.*?\$\$|\$[^$\n]+\$|\]\([^)]*\)|\[[^\]]*\](?=\(http)|https?://\S+", re.S
)


def output_problems(executed: NotebookNode) -> list[str]:
    """Find errors, warnings and folder names of the machine in the outputs."""
    found = []
    for cell in code_cells(executed):
        for output in cell.outputs:
            name = cell.source.strip().splitlines()[0][:60] if cell.source.strip() else ""
            if output.output_type == "error":
                found.append(f"an error in {name!r}: {output.ename}: {output.evalue}")
            elif output.get("name") == "stderr":
                found.append(f"a warning in {name!r}: {output.text.strip()[:200]}")
    printed = "\n".join(_printed(executed))
    folders = {str(Path.home()) + "/", sys.prefix, tempfile.gettempdir() + "/", 'File "/'} - {"//"}
    if named := sorted(folder for folder in folders if folder in printed):
        found.append(f"an output names a folder of the machine: {', '.join(named)}")
    return found


def unbacked_numbers(executed: NotebookNode) -> list[str]:
    """Return the numbers that the prose states as results and that nothing backs.

    A number counts as a result if it has a unit, a decimal point or three digits. It is backed if, rounded to as many
    digits, it occurs in an output or in the code of a cell, or if a comment in the prose gives its source:
    `<!-- given: 312 the data sheet of an A100 -->`.
    """
    text = markdown(executed)
    given = " ".join(re.findall(r"<!-- given:(.*?)-->", text, re.S))
    code = " ".join(cell.source for cell in code_cells(executed))
    known = [_value(m) for part in (*_printed(executed), code, given) for m in _NUMBER.finditer(part)]
    known += [100 * value for value in known]  # 0.25 and 25 %
    return [words for words, value, digits in _results(text) if not any(round(k, digits) == value for k in known)]


def _results(text: str) -> Iterator[tuple[str, float, int]]:
    """Yield (words around it, value, decimal places) for each number that is stated as a result."""
    prose = _NOT_PROSE.sub(lambda m: " " * len(m[0]), text)
    for m in _NUMBER.finditer(prose):
        year = re.fullmatch(r"(19|20)\d\d", m[0])
        if (m[2] or "," in m[1] or len(m[1]) > 2 or _UNIT.match(prose, m.end())) and not year:
            words = " ".join(prose[max(0, m.start() - 30) : m.end() + 20].split())
            yield words, _value(m), len(m[2] or ".") - 1


def _value(m: re.Match) -> float:
    return float(m[1].replace(",", "") + (m[2] or ""))


def _printed(executed: NotebookNode) -> Iterator[str]:
    """Yield all text of the outputs."""
    for cell in code_cells(executed):
        for output in cell.outputs:
            if output.output_type == "stream":
                yield output.text
            elif "data" in output:
                yield output.data.get("text/plain", "")
                yield html.unescape(re.sub(r"<[^>]*>", " ", output.data.get("text/html", "")))
                yield output.data.get("text/markdown", "")
