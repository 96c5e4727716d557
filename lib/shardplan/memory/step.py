"""Per-rank memory in closed form: walk through a step once, and record the fullest point of each part.

`activations` has what a part of the model makes; `states` what is held between steps; `gathering` (FSDP) and
`replicating` (DDP, ZeRO) an engine's temporary memory. Here they are put together, in the order of a step:

    forward of the embedding, of each block, of the output layer with its loss
    backward of the output layer, of each block from the last to the first, of the embedding
    the optimizer

A moment is a sum: states + activations kept by the parts before + the part's own + the engine's. These bytes count
tensors only. `allocator` computes what the allocator, CUDA and its libraries add.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from shardplan.activations.sizes import Chosen
from shardplan.memory import allocator, offload, optimizing
from shardplan.memory.activation_sums import Walk, walks
from shardplan.memory.gathering import Gathering
from shardplan.memory.live import Live, Terms, total
from shardplan.memory.replicating import Ddp, WholeParameters, Zero1, Zero2
from shardplan.planned_job import Setup
from shardplan.records import MemoryPlan, Moment, Term
from shardplan.stage_parameters import Stage, stages

ENGINES = {  # all have the same methods: see Gathering
    "NONE": WholeParameters,
    "DDP": Ddp,
    "DDP+ZERO_1": Ddp,
    "ZERO_1": Zero1,
    "ZERO_2": Zero2,
    "SHARD_GRAD_OP": Gathering,
    "FULL_SHARD": Gathering,
}
TOKEN_BYTES = 8  # int64
AT_THE_ENDS = 3  # blocks; FSDP holds buffers of up to three at once


def memory_plan(setup: Setup, *, on_gpu: bool = True, every_block: bool = True) -> MemoryPlan:
    """Plan the memory of the fullest rank. Of several micro-batches only the first and the last are walked through.

    Without `on_gpu`, ranks are on CPUs, whose attention kernels allocate less. Without `every_block`, only the blocks
    at both ends have moments. This is faster, and the peak is the same: memory changes by the same amount from block to
    block, so it is fullest at an end.
    """
    plans = [_of_stage(setup, stage, on_gpu, every_block) for stage in stages(setup)]
    fullest = max(plans, key=lambda plan: plan.allocated_bytes)
    return replace(fullest, host_bytes=max(plan.host_bytes for plan in plans))  # may be another stage's


def _of_stage(setup: Setup, stage: Stage, on_gpu: bool, every_block: bool) -> MemoryPlan:
    moments = tuple(_Step(setup, stage, on_gpu, every_block).walk())
    low, high = allocator.reserved_bytes(moments, expandable=setup.strategy.expandable_segments)
    if setup.machine.reserve:
        low = high = low * setup.machine.reserve
    context_bytes = allocator.context_bytes(setup) + setup.machine.extra_bytes
    workspaces_bytes = allocator.workspaces_bytes(setup)
    return MemoryPlan(moments, (low, high), context_bytes, *offload.away(setup, stage), workspaces_bytes)


class _Step:
    def __init__(self, setup: Setup, stage: Stage, on_gpu: bool, every_block: bool) -> None:
        self.setup, self.stage, self.on_gpu, self.every_block, self.live = setup, stage, on_gpu, every_block, Live()
        parts = walks(Chosen.of(setup), on_gpu)
        self.embedding = parts.embedding() if stage.first else None
        self.head = parts.head() if stage.last else None
        self.blocks = parts.blocks(setup, stage)
        self.residual_stream = _residual_stream(setup)
        self.engine = _engine(setup)(self.live, setup, stage)

    def walk(self) -> list[Moment]:
        s = self.setup.strategy
        self._hold_residents()
        for i in sorted({0, s.accumulation - 1}):
            self._micro_batch(sync=i == s.accumulation - 1 or not s.accumulate_unsharded)
        self.live.drop("in flight")
        self._enter("optimizer")
        self.engine.before_optimizer()
        if s.offload == "none":
            self.live.look("optimizer", "optimizer", optimizing.temporaries(self.setup, self.stage, self.on_gpu))
        return self.live.moments

    def _hold_residents(self) -> None:
        self.live.hold("states", offload.on_device(self.setup, self.stage))
        words = "tokens and targets, B T each, 8 bytes each"
        self.live.hold("batch", (Term("other", words, 2 * TOKEN_BYTES * self.setup.tokens),))
        others = self.stage.in_flight - 1
        blocks = () if self.setup.strategy.offload_activations else self.blocks
        kept = others * sum(total(walk.kept) for walk in (self.embedding, *blocks, self.head) if walk)
        words = f"activations of {others:g} more micro-batches in flight"
        self.live.hold("in flight", (Term("activations", words, kept),))

    def _micro_batch(self, sync: bool) -> None:
        self.engine.begin(sync)
        self._forward()
        self._backward()

    def _enter(self, part: str, block: int = 0) -> None:
        """Begin a part. Inner blocks have moments only with `every_block`, or in ZeRO-2, whose buckets cross blocks."""
        self.live.part = part
        s = self.setup.strategy
        ends = max(AT_THE_ENDS, s.recompute_every + 1)
        inner = ends < block <= len(self.blocks) - ends and not isinstance(self.engine, Zero2)
        self.live.quiet = inner and not self.every_block

    @contextmanager
    def _between_blocks(self) -> Iterator[None]:
        self.live.hold("between blocks", self.residual_stream)
        yield
        self.live.drop("between blocks")

    # Forward

    def _forward(self) -> None:
        engine, n, s = self.engine, len(self.blocks), self.setup.strategy
        self._enter("forward of the embedding")
        engine.before_forward(0)
        self._do(self.embedding, 0, "forward of the embedding")
        for number, block in enumerate(self.blocks, 1):
            self._enter(f"forward of block {number}", number)
            with self._between_blocks():
                engine.before_forward(number)
            self._do(block, number, f"forward of block {number}")
            if s.offload_activations:  # the copy ran beside this block
                self.live.drop(f"kept {number - 1}" if number > 1 else "")
            engine.after_forward(number)
        self._enter("forward of the output layer")
        self._do(self.head, n + 1, "forward of the output layer")
        engine.after_forward(0)
        engine.end_forward()
        for number in range(n + 2):
            self.live.drop(f"until loss {number}")

    def _do(self, walk: Walk | None, number: int, name: str) -> None:
        if walk:
            self.live.look(name, "forward", walk.fullest_forward)
            self.live.hold(f"kept {number}", walk.kept)
            self.live.hold(f"until loss {number}", walk.until_loss)

    # Backward: a part's points contain what is left of its own `kept`

    def _backward(self) -> None:
        engine, n = self.engine, len(self.blocks)
        self._enter("backward of the output layer")
        engine.begin_backward()
        self.live.drop(f"kept {n + 1}")
        self._undo(self.head, 0, "backward of the output layer")
        for number in range(n, 0, -1):
            self._enter(f"backward of block {number}", number)
            with self._between_blocks():
                engine.before_backward(number)
            if self.setup.strategy.offload_activations and number > 1:  # comes back beside this block
                self.live.hold(f"kept {number - 1}", self.blocks[number - 2].kept)
            self.live.drop(f"kept {number}")
            self._undo(self.blocks[number - 1], number, f"backward of block {number}")
            with self._between_blocks():
                engine.after_backward(number)
        self._enter("backward of the embedding")
        self.live.drop("kept 0")
        self._undo(self.embedding, 0, "backward of the embedding")
        if self.setup.shape.tied and self.embedding:
            self._hand_over_tied_gradient()
        engine.end_backward()

    def _undo(self, walk: Walk | None, unit: int, name: str) -> None:
        """Record backward's fullest point. A gradient is made, moves to where the engine wants it, and has moved."""
        if self.live.quiet and walk:  # nothing is recorded: all gradients are made at once
            self._made(walk, unit, walk.gradients)
            self.engine.moves()
            self.engine.moved()
            return
        best = _Fullest(self.live, name)
        for terms, afterwards, new in walk.backward if walk else ():
            if new:
                self._made(walk, unit, new)
                best.consider(terms)
                self.engine.moves()
                best.consider(afterwards)
                self.engine.moved()
            else:
                best.consider(terms)
        if best.moment:
            self.live.moments.append(best.moment)

    def _hand_over_tied_gradient(self) -> None:
        """Give the engine the tied matrix's gradient: the sum of both, which the embedding's points have made."""
        self.live.drop("tied gradient")
        self.engine.made(0, ("embedding.weight",))
        self.engine.moves()
        self.live.look("gradient of the tied matrix handed over", "backward")
        self.engine.moved()

    def _made(self, walk: Walk, unit: int, new: tuple[str, ...]) -> None:
        """Give the engine new gradients. A tied matrix has two, and the engine gets them when they are added up."""
        if walk is self.head and self.embedding and "embedding.weight" in new:
            new = tuple(name for name in new if name != "embedding.weight")
            n_bytes = next(w.gathered_bytes for w in self.stage.root if w.name == "embedding.weight")
            words = "the tied matrix's gradient from the output layer, which waits for the embedding's"
            self.live.hold("tied gradient", (Term("unsharded", words, n_bytes),))
        self.engine.made(unit, new)


def _engine(setup: Setup):
    """Return the engine's class. With offload, ZeRO-1 too sends gradients to the host as backward makes them."""
    s = setup.strategy
    return Zero2 if s.sharding == "ZERO_1" and s.offload != "none" else ENGINES[s.sharding]


def _residual_stream(setup: Setup) -> Terms:
    """Residual stream between two blocks: a block's result, or its gradient. Inside a block, the part counts it."""
    s = setup.strategy
    itemsize = 4 if s.bytes.autocast else s.bytes.compute
    n = setup.tokens * setup.shape.dim / (s.tensor if s.sequence_parallel else 1)
    return (Term("activations", "residual stream between blocks, or its gradient, B S D", itemsize * n),)


class _Fullest:
    def __init__(self, live: Live, name: str) -> None:
        self.live, self.name, self.moment, self.most = live, name, None, 0.0

    def consider(self, terms: Terms) -> None:
        n_bytes = self.live.n_bytes + self.live.total(terms)
        if n_bytes > self.most:
            self.moment, self.most = self.live.moment(self.name, "backward", terms), n_bytes
