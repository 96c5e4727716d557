"""Temporary memory of DDP and ZeRO: every rank holds whole parameters, and gradients are sent in buckets.

DDP keeps one flat bucket buffer as large as all gradients, during the whole training. With gradient_as_bucket_view
gradients are views of it, and a gradient that backward has just made is held twice until it is copied in. Without it,
whole gradients are held next to the buffer until zero_grad.

ZeRO-1 lets backward make all gradients, and moves them out bucket by bucket before the optimizer steps: whole copies of
two buckets are live at once (one is filled while the other is sent), and slices of 1/N stay.

ZeRO-2 does the same while backward computes, so that whole gradients never pile up: one bucket fills, one is sent.

NONE is a model without a wrapper: gradients are made, and stay until zero_grad.

DDP+ZERO_1 is torch's ZeroRedundancyOptimizer: all of DDP, and optimizer states of 1/N.

Source: torch/csrc/distributed/c10d/reducer.cpp; shardlab.zero, and Rajbhandari et al. 2020, section 5.
"""

from collections import Counter
from math import ceil

from shardplan.memory import states
from shardplan.memory.live import Live
from shardplan.planned_job import Setup
from shardplan.records import Term
from shardplan.stage_parameters import Stage


class WholeParameters:
    """Engine of NONE, a plain model on one rank, and base of DDP's and ZeRO's. It has the methods of Gathering."""

    views = False

    def __init__(self, live: Live, setup: Setup, stage: Stage) -> None:
        self.live, self.setup, self.stage = live, setup, stage
        self.each = setup.strategy.bytes.gradients
        self.sizes = {  # bytes of each gradient
            (unit, w.name): w.numel * self.each
            for unit in range(stage.n_blocks + 1)
            for w in (stage.of_block(unit) if unit else stage.root)
            if w.trained
        }
        self.made_bytes, self.accumulating = 0.0, False
        self.offloaded = setup.strategy.offload != "none"
        self._hold_16_bit_copy()

    def _hold_16_bit_copy(self) -> None:
        """Hold the copy that mixed precision without autocast computes with, as in DDP's MixedPrecision."""
        b = self.setup.strategy.bytes
        if b.compute < b.parameters and not b.autocast:
            n_bytes = b.compute * sum(w.numel for w in self.stage.weights)
            self.live.hold("16-bit copy", (Term("unsharded", f"parameters cast to {b.compute} bytes each", n_bytes),))

    def begin(self, sync: bool) -> None:
        self.sync = sync

    def before_forward(self, unit: int) -> None: ...

    after_forward = before_backward = after_backward = before_forward

    def end_forward(self) -> None: ...

    begin_backward = end_forward

    def made(self, unit: int, names: tuple[str, ...]) -> None:
        new = sum(self.sizes.get((unit, name), 0.0) for name in names)
        if self._goes_elsewhere:
            self._hold_new(new)
        else:
            self.made_bytes += new
            self.live.hold("gradients", (Term("gradients", f"gradients, {self.each} bytes each", self.made_bytes),))

    def _hold_new(self, n_bytes: float) -> None:
        words = "the gradient just made, not yet where it belongs"
        self.live.hold("new gradient", (Term("temporaries", words, n_bytes),))

    def moves(self) -> None:
        """Do nothing: the new gradient moves, and is held twice until `moved`."""

    def moved(self) -> None:
        self.live.drop("new gradient")

    @property
    def _goes_elsewhere(self) -> bool:
        """Flag: a new gradient is added to another, copied into a bucket, or (NONE) sent to the host at once."""
        leaves = self.offloaded and self.setup.strategy.sharding == "NONE"
        return self.accumulating or (self.views and self.sync) or leaves

    def end_backward(self) -> None:
        self.accumulating = True

    def before_optimizer(self) -> None: ...


class Ddp(WholeParameters):
    def __init__(self, live: Live, setup: Setup, stage: Stage) -> None:
        super().__init__(live, setup, stage)
        self.views = setup.strategy.gradient_as_bucket_view
        category, words = "buckets", f"DDP's buckets, {self.each} bytes for each gradient"
        if self.views:
            category, words = "gradients", f"buckets, whose views are the gradients, {self.each} bytes each"
        live.hold("buckets", (Term(category, words, sum(self.sizes.values())),))

    def end_backward(self) -> None:
        super().end_backward()
        if self.views and self.sync:  # gradients of micro-batches that were not reduced are in the buckets now
            self.live.drop("gradients")


class Zero1(WholeParameters):
    def before_optimizer(self) -> None:
        """Reduce bucket by bucket. Live: gradients not yet moved, two flat buckets, slices that have arrived."""
        n, left, slices = self.setup.shards, self.made_bytes, 0.0
        before, fullest = 0.0, None
        for flat in _bucket_bytes(self.setup, self.stage):
            terms = (
                Term("gradients", "whole gradients not yet moved", left),
                Term("buckets", "a bucket that fills, and one on its way", flat + before),
                Term("gradients", f"slices of 1/{n} of the buckets that have arrived", slices),
            )
            if fullest is None or sum(t.n_bytes for t in terms) > sum(t.n_bytes for t in fullest):
                fullest = terms
            left, slices, before = left - flat, slices + flat / n, flat
        self.live.drop("gradients")
        self.live.look("reduce_scatter of all gradients", "optimizer", fullest or ())
        self.live.hold("gradients", (Term("gradients", f"gradients, 1/{n} of them, {self.each} bytes each", slices),))


class Zero2(WholeParameters):
    """Engine of ZeRO-2. Without a reduction (`accumulate_unsharded`) gradients stay whole, as in Zero1.

    While one moves, the plan counts what its node has not freed yet: at most a tensor too many, for a moment.
    """

    def __init__(self, live: Live, setup: Setup, stage: Stage) -> None:
        super().__init__(live, setup, stage)
        self.flat = _bucket_bytes(setup, stage)
        self.bucket_of = _bucket_of(setup, stage)
        self.reduced_before = False

    def begin(self, sync: bool) -> None:
        super().begin(sync)
        self.next, self.filling, self.new = 0, set(), []
        self.missing = Counter(self.bucket_of.values())

    def made(self, unit: int, names: tuple[str, ...]) -> None:
        if not self.sync:
            return super().made(unit, names)
        self.new = [key for name in names if (key := (unit, name)) in self.sizes]
        self._hold_new(sum(self.sizes[key] for key in self.new))

    def moves(self) -> None:
        self.filling |= {self.bucket_of[key] for key in self.new}
        self.missing.subtract(self.bucket_of[key] for key in self.new)
        self._hold(sum(self.sizes[key] for key in self.new))

    def moved(self) -> None:
        """Send full buckets in their order. Before a bucket is sent, the one before has arrived."""
        super().moved()
        self.new = []
        while self.next < len(self.flat) and not self.missing[self.next]:
            self.filling.discard(self.next - 1)
            self.next += 1
            self._hold()
            self.live.look(f"reduce_scatter of bucket {self.next}", "backward")

    def _hold(self, moved_bytes: float = 0.0) -> None:
        """Hold flat buffers of the buckets that fill and of the one being sent, and slices of all that were sent."""
        on_its_way = {self.next - 1} if self.next else set()
        flat = sum(self.flat[b] for b in self.filling | on_its_way)
        slices = sum(self.flat[: self.next])
        if self.offloaded:
            slices = sum(self.flat[b] for b in on_its_way)  # the others are on the host
        elif self.reduced_before:  # new slices are added to existing ones
            flat += sum(self.flat[b] for b in on_its_way) / self.setup.shards
            slices = sum(self.flat)
        self.live.hold("buckets", (Term("buckets", "buckets that fill, and one on its way", flat),))
        words = f"gradients, slices of 1/{self.setup.shards}, {self.each} bytes each"
        self.live.hold("slices", (Term("gradients", words, slices / self.setup.shards),))
        if self.made_bytes:
            self.made_bytes -= moved_bytes
            words = "whole gradients of earlier micro-batches"
            self.live.hold("gradients", (Term("gradients", words, self.made_bytes),))

    def end_backward(self) -> None:
        if self.sync:
            self.live.drop("buckets")
            self.reduced_before = True
        super().end_backward()


def _bucket_bytes(setup: Setup, stage: Stage) -> list[float]:
    """Bytes of each bucket, padded to N equal slices."""
    n, each = setup.shards, setup.strategy.bytes.gradients
    return [
        each * n * ceil(sum(w.numel for w in bucket) / n) for bucket in states.buckets(setup, states.trained(stage))
    ]


def _bucket_of(setup: Setup, stage: Stage) -> dict[tuple[int, str], int]:
    inner = [w for w in stage.root if w.name.startswith(("embedding", "positions"))]
    outer = [w for w in stage.root if w not in inner]
    numbered = [(0, inner), *((unit, stage.of_block(unit)) for unit in range(1, stage.n_blocks + 1)), (0, outer)]
    names = reversed([(unit, w.name) for unit, weights in numbered for w in weights if w.trained])
    return {
        next(names): number
        for number, bucket in enumerate(states.buckets(setup, states.trained(stage)))
        for _ in bucket
    }
