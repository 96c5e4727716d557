"""Environment variables for processes that are started in the meantime, and where their programs are."""

import os
from contextlib import contextmanager


@contextmanager
def environ(values: dict[str, str]):
    """Set these variables inside the block, and put back what was there, or was not."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def administrators_path() -> str:
    """PATH with the folders of a system administrator's tools, which many users lack."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin", "/usr/local/sbin"])
