"""Source code and error reports, as a lesson shows them."""

import inspect
import linecache
import re
import textwrap
from collections.abc import Callable

from IPython.display import Markdown

_TORCH_FRAME = re.compile(r'  File "[^"]*/(?:torch/[^"]*|contextlib\.py)".*\n(?:    .*\n)*')
_FRAME_WITHOUT_CODE = re.compile(r'  File "([^"\n]+)", line (\d+), in .*\n(?!    )')


def source(*functions: Callable) -> Markdown:
    """The functions and classes as they stand in the library; a method says whose it is."""
    code = "\n".join(_heading(f) + textwrap.dedent(inspect.getsource(f)) for f in functions)
    return Markdown(f"```python\n{code}```")


def _heading(function: Callable) -> str:
    owner = function.__qualname__.rpartition(".")[0]
    return f"# of {owner}\n" if owner else ""


def report(error: BaseException) -> str:
    """The error's message without torch's own stack frames, files by name only, and with each frame's line of code.

    Of a notebook's cells the ranks don't know the code; the notebook does.
    """
    without_torch = _TORCH_FRAME.sub("", f"{error}\n")
    with_code = _FRAME_WITHOUT_CODE.sub(_add_code, without_torch)
    return re.sub(r'File "[^"\n]*/', 'File "', with_code).rstrip()


def _add_code(frame: re.Match) -> str:
    code = linecache.getline(frame[1], int(frame[2])).strip()
    return f"{frame[0]}    {code}\n" if code else frame[0]
