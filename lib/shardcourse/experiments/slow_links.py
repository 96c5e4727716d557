"""Links and drives of a given speed for lesson 9: our two offloading optimizers, with each copy delayed.

A laptop's memory and drive are too quick to see anything. So each copy is real, and handed over only when a link of a
given speed would have carried it. Computation is slept, see `shardsim.slept_computation`.
"""

import threading
import time
from collections.abc import Callable, Mapping

import torch
from torch import nn

from shardlab.cpu_offload_optimizer import CPUOffloadOptimizer
from shardlab.measure.step_time import time_step
from shardlab.model import ModelConfig, Transformer
from shardnext.file_offload import FileOffloadOptimizer
from shardsim.slept_computation import sleep_in
from shardtrace.timeline import Span, Timeline


class Line:
    """A link or a drive that carries one thing after the other. `log` has what it carried, and when."""

    def __init__(self) -> None:
        self.free_s, self.lock, self.log = 0.0, threading.Lock(), []

    def book(self, seconds: float, name: str = "", unit: str = "") -> float:
        """Return the `time.monotonic()` at which something of so many seconds, asked for now, has been carried."""
        with self.lock:
            start_s = max(self.free_s, time.monotonic())
            self.free_s = start_s + seconds
            self.log.append(Span("link", name, start_s, self.free_s, unit))
            return self.free_s


def sleep_until(due_s: float) -> None:
    time.sleep(max(0.0, due_s - time.monotonic()))


class OnSlowHost(CPUOffloadOptimizer):
    """A CPUOffloadOptimizer on a link of `link_s` seconds a byte each way, and `update_s` seconds a parameter."""

    def __init__(self, *args, **options) -> None:
        self.use(0.0, 0.0)
        super().__init__(*args, **options)

    def use(self, link_s: float, update_s: float) -> None:
        self.link_s, self.update_s, self.arrival_s = link_s, update_s, {}
        self.out, self.back, self.cpu = Line(), Line(), Line()

    def _take_gradient(self, p: nn.Parameter) -> None:
        self.arrival_s[p] = self.out.book(p.grad.nbytes * self.link_s)
        super()._take_gradient(p)

    def _update(self, p: nn.Parameter, group: dict) -> None:
        sleep_until(self.arrival_s[p])
        super()._update(p, group)
        sleep_until(self.cpu.book(p.numel() * self.update_s))
        self.back.book(p.nbytes * self.link_s)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        loss = super().step(closure)
        sleep_until(self.back.free_s)
        return loss


class OnSlowDrive(FileOffloadOptimizer):
    """A FileOffloadOptimizer on a drive of `read_s` and `write_s` seconds a byte. `timeline()` shows the last steps."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.use(0.0, 0.0)

    def use(self, read_s: float, write_s: float) -> None:
        self.read_s, self.write_s, self.line, self.updates = read_s, write_s, Line(), []

    def timeline(self) -> Timeline:
        """Return the drive's work and the updates since `use` as a timeline; each is marked with its chunk's number."""
        return Timeline(0, (*self.line.log, *self.updates))

    def _read(self, chunk, buffer, known, used_before=None) -> int:
        n_bytes = super()._read(chunk, buffer, known, used_before)
        sleep_until(self.line.book(n_bytes * self.read_s, "read", self._number(chunk)))
        return n_bytes

    def _write(self, chunk, buffer) -> int:
        n_bytes = super()._write(chunk, buffer)
        sleep_until(self.line.book(n_bytes * self.write_s, "write", self._number(chunk)))
        return n_bytes

    def _update(self, chunk, buffer, known) -> None:
        start_s = time.monotonic()
        super()._update(chunk, buffer, known)
        self.updates.append(Span("compute", "optimizer", start_s, time.monotonic(), self._number(chunk)))

    def _number(self, chunk) -> str:
        return f"blocks.{next(i for i, c in enumerate(self._chunks) if c[0] is chunk[0])}"


class SleptTraining:
    """A small model whose blocks sleep, so that a step takes a given computing time, with a real optimizer."""

    def __init__(self, config: ModelConfig, make_optimizer: Callable) -> None:
        torch.manual_seed(0)
        self.model = Transformer(config)
        self.optimizer = make_optimizer(self.model.parameters())
        self.tokens, self.targets = torch.randint(config.vocab_size, (2, 1, 8))
        self._step()  # afterwards the optimizer has states
        self._sleeps = [sleep_in(block, 0.0) for block in self.model.blocks]

    def seconds(self, computing_s: Mapping[int, float], repeats: int = 2) -> dict[int, float]:
        """Return the seconds of a step by the keys of `computing_s`, the fastest of `repeats`.

        A third of the computing time is slept in forward and two thirds in backward.
        """
        found = {}
        for key, seconds in computing_s.items():
            for sleep in self._sleeps:
                sleep.forward_s = seconds / 3 / len(self._sleeps)
                sleep.backward_s = 2 * sleep.forward_s
            found[key] = min(time_step(self._step) for _ in range(repeats))
        return found

    def _step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.tokens, self.targets).backward()
        self.optimizer.step()
