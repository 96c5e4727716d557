"""Parameters for notebooks, parsed from the command line."""

import ast
import warnings
from pathlib import Path
from typing import Any

import papermill


def parse(pairs: list[str]) -> dict[str, Any]:
    """Parse pairs name=value: a value is a Python literal, or else text. Raises ValueError if a pair is malformed."""
    parameters = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if not (name.isidentifier() and value):
            raise ValueError(f"a parameter is a name and a value, as in -p seed 1, and this is {pair!r}")
        try:
            parameters[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            parameters[name] = value
    return parameters


def unknown(parameters: dict[str, Any], notebooks: list[Path]) -> list[str]:
    """Describe the parameters that a notebook lacks. papermill would set them, but no cell would read them."""
    found = []
    for notebook in (n for n in notebooks if parameters and n.is_file()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                known = papermill.inspect_notebook(notebook)
            except (OSError, ValueError):  # running the notebook will report the error
                continue
        if strangers := sorted(set(parameters) - set(known)):
            found.append(f"{notebook.name} has no parameter {', '.join(strangers)}; it has {', '.join(known)}")
    return found
