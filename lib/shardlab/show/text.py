"""Source code and error reports, as a lesson shows them."""

import inspect
import re
import textwrap
from collections.abc import Callable

from IPython.display import Markdown

_TORCH_FRAME = re.compile(r'  File "[^"]*/torch/[^"]*".*\n(?:    .*\n)*')


def source(*functions: Callable) -> Markdown:
    """The functions as they stand in the library."""
    code = "\n".join(textwrap.dedent(inspect.getsource(f)) for f in functions)
    return Markdown(f"```python\n{code}```")


def report(error: BaseException) -> str:
    """The error's message without torch's own stack frames, and with the names of files only."""
    without_torch = _TORCH_FRAME.sub("", f"{error}\n")
    return re.sub(r'File "[^"\n]*/', 'File "', without_torch).rstrip()
