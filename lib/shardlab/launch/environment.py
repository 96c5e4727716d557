"""Environment variables for new processes, and the search path for administrators' programs."""

import os
from contextlib import contextmanager


@contextmanager
def environ(values: dict[str, str]):
    """Set these variables inside the block, and restore their previous state afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def administrators_path() -> str:
    """PATH plus the folders of administrators' tools, which many users' PATH lacks."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin", "/usr/local/sbin"])
