"""Kill a process while it saves, and count how often what is left can be loaded: the material of lesson 11b."""

import os
import random
import signal
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from torch import nn

from shardlab import LaunchError, launch
from shardlab.model import Transformer, preset

Save = Callable[[Path, int, nn.Module], object]
Load = Callable[[Path, nn.Module], object]


def loadable_after_kills(save: Save, load: Load, folder: Path, *, times: int = 6, seed: int = 0) -> int:
    """Return how many of `times` killed processes leave a checkpoint that `load(its folder, model)` accepts.

    Each process calls `save(its folder, step, model)` again and again. A kill signal comes 0.05 to 0.3 s after the
    first save. `load` fails by an exception of reading: RuntimeError, EOFError, OSError.
    """
    loaded = 0
    for i in range(times):
        own = Path(tempfile.mkdtemp(dir=folder))
        seconds = random.Random(seed + i).uniform(0.05, 0.3)
        with suppress(LaunchError):  # the kill
            launch(partial(_save_until_killed, save), 1, own, seconds, device="cpu", stream=False)
        with suppress(RuntimeError, EOFError, OSError):
            load(own, Transformer(preset("1M")))
            loaded += 1
    return loaded


def _save_until_killed(save: Save, folder: Path, seconds: float) -> None:
    model = Transformer(preset("1M"))
    save(folder, 0, model)
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
    for step in range(1, 10_000):
        save(folder, step, model)
