"""A line under a cell that says how long something has been taking, for whoever waits for it."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context

SILENT_S = 2.0  # what is over sooner needs no line


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show `what` and the seconds so far while the block runs; nothing of it is left when it ends.

    In a notebook that somebody has open, and nowhere else: what papermill runs would keep the line.
    """
    if not _somebody_looks():
        yield
        return
    over = threading.Event()
    line = threading.Thread(target=copy_context().run, args=(_show, what, over), daemon=True)  # of the cell that runs
    line.start()
    try:
        yield
    finally:
        over.set()
        line.join()


def _somebody_looks() -> bool:
    """Jupyter's server names the notebook to a kernel that it starts; the cell itself runs in the main thread."""
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
