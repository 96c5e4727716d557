"""Parameters for notebooks, from words on a command line."""

import ast
import warnings
from pathlib import Path
from typing import Any

import papermill


def parse(pairs: list[str]) -> dict[str, Any]:
    """name=value each; a value is a Python literal, or else the text itself. ValueError for what is no pair."""
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
    """In words, those that a notebook does not have; papermill would set them, and nothing would read them."""
    found = []
    for notebook in (n for n in notebooks if parameters and n.is_file()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                known = papermill.inspect_notebook(notebook)
            except (OSError, ValueError):  # running it will say what is wrong with it
                continue
        if strangers := sorted(set(parameters) - set(known)):
            found.append(f"{notebook.name} has no parameter {', '.join(strangers)}; it has {', '.join(known)}")
    return found
