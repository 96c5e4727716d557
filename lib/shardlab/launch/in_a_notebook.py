"""What a notebook shows when ranks fail or are interrupted: its own cells by their numbers, and no frame of ours."""

import re
import sys
from collections.abc import Mapping

_FRAME = re.compile(r'File "(?:[^"\n]*/)?(\d+\.py)", line (\d+)')
_PLACE = re.compile(r"\b(\d+\.py):(\d+)\b")  # as the flight record has it


def without_frames(error: BaseException, text: str) -> BaseException:
    """Return the error; a notebook will show `text` instead of its traceback, which has only our frames."""
    error._render_traceback_ = lambda: [f"{type(error).__name__}: {text}"]  # IPython calls it
    return error


def name_cells(text: str, names: Mapping[str, str] | None = None) -> str:
    """Return a report in which a cell's temporary file, "1470340909.py", is called `Cell In[11]`, as IPython does.

    `names`: other names, by file. Without a notebook nothing is replaced.
    """
    names = _cells_of_this_notebook() if names is None else names
    if not names:
        return text
    text = _FRAME.sub(lambda m: f"{names[m[1]]}, line {m[2]}" if m[1] in names else m[0], text)
    return _PLACE.sub(lambda m: f"{names[m[1]]}, line {m[2]}" if m[1] in names else m[0], text)


def _cells_of_this_notebook() -> dict[str, str]:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    numbers = getattr(getattr(shell, "compile", None), "_filename_map", {})
    return {file.rsplit("/", 1)[-1]: f"Cell In[{number}]" for file, number in numbers.items()}
