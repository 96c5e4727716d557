"""Locks for what only one submission at a time may use: this machine's GPUs, and a quiet machine for timing.

A lock is a locked file, so the system frees it when its holder dies. The files are in a private folder inside the
temporary folder, so all that one user grades on a machine shares them, in every course.
"""

import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import torch

from shardcourse import nvidia_smi
from shardlab.tier import Tier

_POLL_S = 0.05


@contextmanager
def quiet() -> Iterator[None]:
    """Wait until no other race runs on this machine, and keep others waiting during the block."""
    with _open("clock") as clock:
        fcntl.flock(clock, fcntl.LOCK_EX)
        yield


class Gpus:
    """`n` of the GPUs called `names`, locked until `close`; waits for them. ValueError if there are fewer than `n`."""

    def __init__(self, names: list[str], n: int) -> None:
        if n > len(names):
            raise ValueError(f"{n} GPUs are needed, and this machine has {len(names)}")
        self.names: list[str] = []
        self._files: list[TextIO] = []
        while len(self.names) < n:
            with _open("gpus") as turn:  # one taker at a time, or two could wait for each other for ever
                fcntl.flock(turn, fcntl.LOCK_EX)
                self._take(names, n)
            time.sleep(0 if self.names else _POLL_S)

    def _take(self, names: list[str], n: int) -> None:
        """Lock `n` free GPUs, or none if fewer are free."""
        free = {}
        for name in names:
            file = _open(f"gpu-{name}")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                free[name] = file
            except BlockingIOError:
                file.close()
        for name in list(free)[n if len(free) >= n else 0 :]:
            free.pop(name).close()
        self.names, self._files = list(free), list(free.values())

    def close(self) -> None:
        for file in self._files:
            file.close()


def gpus_for(tier: Tier) -> Gpus | None:
    """Lock as many GPUs as the tier's ranks use; processes that start later see only these. None without GPUs.

    `gpu1` uses one, or all of two or three: its ranks are then spread over them.
    """
    if tier.device != "cuda":
        return None
    names = visible_gpus()
    gpus = Gpus(names, tier.world_size if tier.name != "gpu1" else len(names) if len(names) < tier.world_size else 1)
    os.environ[_variable()] = ",".join(gpus.names)
    return gpus


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, by UUID where `nvidia-smi` knows it, else by number.

    A number is a poor name: Slurm can show each job only its own GPUs, and each job then counts them from 0.
    """
    uuids = nvidia_smi.query("uuid")
    shown = os.environ.get(_variable())
    names = shown.split(",") if shown else [str(i) for i in range(torch.cuda.device_count())]
    return [_uuid(name.strip(), uuids) for name in names]


def _variable() -> str:
    hip = "HIP_VISIBLE_DEVICES"
    return hip if torch.version.hip and hip in os.environ else "CUDA_VISIBLE_DEVICES"


def _uuid(name: str, uuids: list[str]) -> str:
    """Return the UUID of a GPU that is named by its number, or by the beginning of its UUID; `name` if unknown."""
    if name.isdigit():
        return uuids[int(name)] if int(name) < len(uuids) else name
    return next((uuid for uuid in uuids if uuid.startswith(name)), name)


def _open(name: str) -> TextIO:
    """Open a lock file in our private folder: others who could write there could hold or redirect a lock.

    Raises PermissionError if the folder is not ours alone.
    """
    folder = Path(tempfile.gettempdir(), f"shardlab-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder of user {os.getuid()} alone: remove it, and grade again")
    return (folder / f"{name.replace('/', '-')}.lease").open("w")
