"""Temporary folders that are removed with their maker. If it was killed, the next process to make one removes them."""

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

_PREFIX = "shardlab-box-"
_YOUNG_S = 60.0  # a younger folder may not have been locked yet by its maker


class Scratch:
    """A locked temporary folder: `folder(name)` makes a subfolder; `close` removes everything."""

    def __init__(self) -> None:
        _clear_up()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = (self.path / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def folder(self, name: str) -> Path:
        path = self.path / name
        path.mkdir()
        return path

    def close(self) -> None:
        self._lock.close()
        shutil.rmtree(self.path, ignore_errors=True)


def _clear_up() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            if path.lstat().st_uid != os.getuid():
                continue
            with (path / "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - path.stat().st_mtime > _YOUNG_S:
                    shutil.rmtree(path, ignore_errors=True)
        except OSError:  # in use, another user's, or just removed
            continue
