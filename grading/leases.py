"""What only one submission at a time may use on this machine: its GPUs, and its quiet while a clock runs.

A lease is a locked file, so the system takes it back from whoever dies. Files lie in the temporary folder: there meets
all that a user grades on a machine, whatever course it belongs to.
"""

import fcntl
import getpass
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import torch

from shardlab.tier import Tier

_POLL_S = 0.05


@contextmanager
def quiet() -> Iterator[None]:
    """Wait for the other races of this machine to end, and run one."""
    with _file("clock").open("w") as clock:
        fcntl.flock(clock, fcntl.LOCK_EX)
        yield


class Gpus:
    """`n` of the GPUs called `names`, ours until `close`; it waits for them. ValueError if there are fewer."""

    def __init__(self, names: list[str], n: int) -> None:
        if n > len(names):
            raise ValueError(f"{n} GPUs are needed, and this machine has {len(names)}")
        self.names: list[str] = []
        self._files: list[TextIO] = []
        while len(self.names) < n:
            with _file("gpus").open("w") as turn:  # one after the other, or two would wait for each other's for ever
                fcntl.flock(turn, fcntl.LOCK_EX)
                self._take(names, n)
            time.sleep(0 if self.names else _POLL_S)

    def _take(self, names: list[str], n: int) -> None:
        """All of them or none."""
        free = {}
        for name in names:
            file = _file(f"gpu-{name}").open("w")
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
    """As many as the tier's ranks use, and the only ones that processes see which are started from now on."""
    if tier.device != "cuda":
        return None
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = shown.split(",") if shown else [str(i) for i in range(torch.cuda.device_count())]
    gpus = Gpus(names, 1 if tier.name == "gpu1" else tier.world_size)
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus.names)
    return gpus


def _file(name: str) -> Path:
    return Path(tempfile.gettempdir(), f"shardlab-{getpass.getuser()}-{name.replace('/', '-')}.lease")
