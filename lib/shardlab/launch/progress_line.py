"""A line under a notebook cell that says what is running and for how many seconds."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context

SILENT_S = 2.0  # shorter waits need no line


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show `what` and the seconds so far while the block runs; remove the line when the block ends.

    It works only in a notebook that a person has open: the output of a papermill run would keep the line.
    """
    if not _somebody_looks():
        yield
        return
    over = threading.Event()
    line = threading.Thread(target=copy_context().run, args=(_show, what, over), daemon=True)  # of this cell
    line.start()
    try:
        yield
    finally:
        over.set()
        line.join()


def _somebody_looks() -> bool:
    """Return True on the main thread (where cells run) of a kernel to which Jupyter's server named the notebook."""
    in_kernel = "ipykernel" in sys.modules and "JPY_SESSION_NAME" in os.environ
    return in_kernel and threading.current_thread() is threading.main_thread()


def _show(what: str, over: threading.Event) -> None:
    from IPython.display import display

    began = time.monotonic()
    if over.wait(SILENT_S):
        return
    line = display(_text(what, SILENT_S), raw=True, display_id=True)
    while not over.wait(1.0):
        line.update(_text(what, time.monotonic() - began), raw=True)
    line.update({}, raw=True)


def _text(what: str, seconds: float) -> dict[str, str]:
    return {"text/plain": f"{what}: {seconds:.0f} s"}
