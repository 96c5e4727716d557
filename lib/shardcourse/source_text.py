"""Source code and error reports, formatted for a lesson."""

import inspect
import linecache
import re
import textwrap
from collections.abc import Callable

from IPython.display import Markdown

_FRAME = re.compile(r'  File "([^"\n]*)".*\n(?:    .*\n)*')
_FRAME_WITHOUT_CODE = re.compile(r'  File "([^"\n]+)", line (\d{1,6}), in .*\n(?!    )')


def source(*functions: Callable) -> Markdown:
    """Return the source code of functions and classes. A comment names the class of a method."""
    code = "\n".join(_heading(f) + textwrap.dedent(inspect.getsource(f)) for f in functions)
    return Markdown(f"```python\n{code}```")


def _heading(function: Callable) -> str:
    owner = function.__qualname__.rpartition(".")[0]
    return f"# of {owner}\n" if owner else ""


def report(error: BaseException, *, add_code: bool = True) -> str:
    """Return the error's message without torch's own stack frames, with file names only and each frame's line of code.

    The ranks don't know the code of a notebook's cells, so the notebook adds it. Pass `add_code=False` for an error of
    another person's program: it could name any file, and then no file is opened.
    """
    text = _FRAME.sub(lambda frame: "" if _is_torchs(frame[1]) else frame[0], f"{error}\n")
    if add_code:
        text = _FRAME_WITHOUT_CODE.sub(_add_code, text)
    return re.sub(r'File "[^"\n]*/', 'File "', text).rstrip()


def _is_torchs(path: str) -> bool:
    """Tell whether a frame is torch's. In a notebook the launcher has already shortened its path to "torch/..."."""
    return "/torch/" in f"/{path}" or path.endswith("/contextlib.py")


def _add_code(frame: re.Match) -> str:
    code = linecache.getline(frame[1], int(frame[2])).strip()
    return f"{frame[0]}    {code}\n" if code else frame[0]
