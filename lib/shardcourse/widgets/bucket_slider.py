"""A slider over bucket sizes. On release, DDP trains on real ranks with buckets of that size, and a point appears.

    measure = on_ranks(make_step, 4, network=simulated("1 Gb/s, 500 us"))      # make_step(cap_mb) -> step, on a rank
    BucketSlider(measure, predicted_s)

The ranks run in the background, on a thread, so that other cells can run meanwhile. If the slider moves several times
before a run ends, only the last size is measured next. If a run fails, a message says so, and the points so far stay.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import ipywidgets
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from shardcourse.figures import bucket_curve
from shardcourse.widgets.base import Pane, choice, slider
from shardlab.launch import launch
from shardlab.measure.step_time import time_step

WARM_UP = 2  # DDP rebuilds its buckets after the first step


def on_ranks(
    make_step: Callable[[float], Callable[[], Any]],
    world_size: int,
    *,
    network: Any = None,
    steps: int = 3,
    timeout_s: float = 30.0,
) -> Callable[[float], list[float]]:
    """Return a `measure` for a BucketSlider: it takes a cap and returns each step's seconds on the slowest rank.

    `make_step(cap_mb)` runs on every rank and returns the step to time. `network` is the argument of `launch`.
    """

    def time_steps(cap_mb: float) -> list[float]:
        step = make_step(cap_mb)
        return [time_step(step) for _ in range(WARM_UP + steps)][WARM_UP:]

    def measure(cap_mb: float) -> list[float]:
        by_rank = launch(time_steps, world_size, cap_mb, network=network, timeout_s=timeout_s, stream=False)
        return [max(seconds) for seconds in zip(*by_rank, strict=True)]

    return measure


class BucketSlider(Pane):
    """A slider that measures step time by bucket size and compares it with the curve `predicted_s`, {cap: seconds}.

    `measure(cap_mb)` returns seconds of each step. It runs on a thread and must end by itself. The first point, at
    `first_mb`, is measured before the widget is shown. `points` holds all measurements, {cap: seconds of each step}.
    """

    def __init__(
        self,
        measure: Callable[[float], Sequence[float]],
        predicted_s: Mapping[float, float],
        *,
        caps_mb: Sequence[float] | None = None,
        first_mb: float | None = None,
        levels_s: Mapping[str, float] | None = None,
        name: str = "torch DDP",
        title: str = "",
    ) -> None:
        self._measure, self._predicted_s = measure, dict(predicted_s)
        self._drawing = {"levels_s": levels_s or {}, "title": title}
        self._name, self.points = name, {}
        self._lock, self._asked, self._busy = threading.Lock(), None, False
        caps = sorted(caps_mb or predicted_s)
        self.cap = choice("bucket_cap_mb, MiB", [(f"{cap:g}", cap) for cap in caps], first_mb or caps[-1])
        self.again = ipywidgets.Button(description="Measure again", layout={"width": "max-content"})
        super().__init__("Bucket sizes", [slider(self.cap), self.again])
        self.cap.observe(lambda change: self.ask(change.new), names="value")
        self.again.on_click(lambda button: self.ask(self.cap.value))
        self.show(self._curve(), "nothing measured yet")
        self.add_point(self.cap.value)

    def ask(self, cap_mb: float) -> None:
        """Return at once; measure `cap_mb` when the present run ends, unless a later call asks for another cap."""
        with self._lock:
            self._asked = cap_mb
            if not self._busy:
                self._busy = True
                threading.Thread(target=self._work, daemon=True, name="bucket slider").start()

    def _work(self) -> None:
        while (cap_mb := self._next()) is not None:
            self.add_point(cap_mb)

    def _next(self) -> float | None:
        with self._lock:
            cap_mb, self._asked = self._asked, None
            self._busy = cap_mb is not None
            return cap_mb

    def add_point(self, cap_mb: float) -> None:
        """Measure `cap_mb` now, and draw the new point."""
        self.say(f"training with bucket_cap_mb = {cap_mb:g} …")
        began_s = time.perf_counter()
        try:
            self.points.setdefault(cap_mb, []).extend(self._measure(cap_mb))
        except Exception as error:  # of any kind: no caller would catch it on a thread
            if not self.points[cap_mb]:
                del self.points[cap_mb]
            self.say(f"bucket_cap_mb = {cap_mb:g} failed. {type(error).__name__}: {error}", problem=True)
            return
        self.show(self._curve(), self._in_words(cap_mb, time.perf_counter() - began_s))

    def _curve(self) -> Figure:
        measured = {self._name: dict(sorted(self.points.items()))} if self.points else {}
        figure = bucket_curve(self._predicted_s, measured, **self._drawing)
        figure.axes[0].xaxis.set_major_locator(
            FixedLocator([cap for _, cap in self.cap.options])
        )  # ticks for caps that are not measured yet, too
        return figure

    def _in_words(self, cap_mb: float, took_s: float) -> str:
        best = min(self.points, key=lambda cap: min(self.points[cap]))
        measured_s, predicted_s = self.points[cap_mb], self._predicted_s.get(cap_mb)
        predicted = "" if predicted_s is None else f" ({predicted_s * 1e3:.0f} ms predicted)"
        return (
            f"bucket_cap_mb = {cap_mb:g}: {min(measured_s) * 1e3:.0f} ms a step{predicted}, median "
            f"{median(measured_s) * 1e3:.0f} of {len(measured_s)} steps; ranks started and trained in {took_s:.1f} s. "
            f"Least so far: {min(self.points[best]) * 1e3:.0f} ms at {best:g} MiB, of {len(self.points)} measured."
        )
