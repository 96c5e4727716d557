"""Show a notebook, when ranks fail or are interrupted, its own cells by their numbers, and no frame of ours."""

import linecache
import os
import re
import sys
from collections.abc import Mapping
from importlib.util import find_spec

_FRAME = re.compile(r'File "(?:[^"\n]*/)?(\d+\.py)", line (\d+)(, in .*\n(?!    ))?')
_PLACE = re.compile(r"\b(\d+\.py):(\d+)\b")  # as the flight record has it
_FOLDERS = {os.path.dirname(os.path.dirname(find_spec(name).origin)) for name in ("torch", "shardlab")}
_LIBRARY = re.compile(rf'File "(?:{"|".join(map(re.escape, sorted(_FOLDERS, key=len, reverse=True)))})/')


def without_frames(error: BaseException, text: str) -> BaseException:
    """Return the error; a notebook will show `text` and its notes, and no traceback, which has only our frames."""
    error._render_traceback_ = lambda: [f"{type(error).__name__}: {text}", *getattr(error, "__notes__", [])]
    return error


def name_cells(text: str, names: Mapping[str, str] | None = None) -> str:
    """Return a report in which a cell's temporary file, "1470340909.py", is called `Cell In[11]`, as IPython does.

    `names`: other names, by file. If left out, they are those of this notebook, and frames get the line of code that
    the ranks don't know, and files of torch and of this library are called "torch/..." and "shardlab/...". Without a
    notebook nothing is replaced.
    """
    files = {} if names else _cells_of_this_notebook()
    names = names or {name: f"Cell In[{number}]" for name, (_, number) in files.items()}

    def named(m: re.Match) -> str:
        if m[1] not in names:
            return m[0]
        rest = m[3] or ""
        code = linecache.getline(files[m[1]][0], int(m[2])).strip() if rest and files else ""
        return f"{names[m[1]]}, line {m[2]}{rest}" + (f"    {code}\n" if code else "")

    text = _FRAME.sub(named, f"{text}\n").removesuffix("\n")
    if names:
        text = _LIBRARY.sub('File "', text)
    return _PLACE.sub(lambda m: f"{names[m[1]]}, line {m[2]}" if m[1] in names else m[0], text)


def _cells_of_this_notebook() -> dict[str, tuple[str, int]]:
    """Return (file, number) of each cell that has run, by the file's name without its folder."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    numbers = getattr(getattr(shell, "compile", None), "_filename_map", {})
    return {file.rsplit("/", 1)[-1]: (file, number) for file, number in numbers.items()}
