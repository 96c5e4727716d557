"""Temporary folders that go with whoever made them, also if they were killed: the next to need one clears up."""

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

_PREFIX = "shardlab-box-"
_YOUNG_S = 60.0  # so young, its maker may not have locked it yet


class Scratch:
    """`folder(name)` makes one in it; `close` removes all."""

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
        except OSError:  # somebody's who lives, or another user's, or just gone
            continue
