"""Read the JSON of a submitted notebook, in any encoding that editors write; say in words what a file is instead."""

import json
import re


class SubmissionError(ValueError):
    """A submission that can't be graded as it is; the message says what to ask its author for."""


AS_SAVED = "ask for the notebook as Jupyter saved it"
_LONGEST_INTEGER = 4_000  # digits: Python refuses to read longer ones
_PADDING = "\ufeff\0\x1a"  # marks of byte order, and what a disk or an editor leaves at the end of a file
_INSTEAD_OF_JSON = {
    r"\A\s*\Z": "is empty",
    r"\APK\x03\x04": "is a zip archive, and no notebook",
    r"\A\x1f.\x08": "is a gzip archive, and no notebook",
    r"\A%PDF-": "is a PDF, and no notebook",
    r"\A\s*<(!doctype|html|\?xml)": "is a page of a website, and no notebook",
    r"\Aversion https://git-lfs": "is Git LFS's note about a file, and not the file",
    r"^<{7} ": "has the marks of a merge conflict of git",
    r"\A(\s*#.*\n|\s*\n)*\s*(import|from|def|class|%|\"\"\")": "is a program, and no notebook",
}


def parsed(raw: bytes, file: str, repairs: list[str]) -> dict:
    """Return a notebook file's JSON, and note what was repaired to read it. SubmissionError if it has none."""
    encoding = json.detect_encoding(raw[:4])
    try:
        text = raw.decode(encoding, "surrogatepass")
    except UnicodeDecodeError:
        encoding, text = "cp1252", raw.decode("cp1252", "replace")
    whole = text.strip(_PADDING + " \t\r\n")
    try:
        nb = json.loads(whole, parse_int=_integer)
    except Exception as error:  # a student may hand in anything
        instead = [words for form, words in _INSTEAD_OF_JSON.items() if re.search(form, whole, re.I | re.M)]
        words = f"can't be read as a notebook ({type(error).__name__}: {error})"[:300]
        raise SubmissionError(f"{file} {instead[0] if instead else words}: {AS_SAVED}") from None
    if not isinstance(nb, dict):
        raise SubmissionError(f"{file} can't be read as a notebook: {AS_SAVED}")
    if encoding != "utf-8":
        repairs.append(f"The file's encoding is {encoding}, and not plain UTF-8: it was read as such.")
    if set(_PADDING) & {text[:1], text[-1:]}:
        repairs.append("The file had characters before or after the notebook that are no text: they were left out.")
    return nb


def _integer(digits: str) -> float:
    return int(digits) if len(digits) <= _LONGEST_INTEGER else float("inf")
