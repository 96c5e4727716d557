"""Temporary memory of FSDP: what is held and freed as units are gathered, resharded, and reduce their gradients.

Vocabulary. A *unit* is what fully_shard was called on: the blocks, and the root, which has all other parameters. Number
0 is the root, blocks count from 1. With N ranks and S bytes of a rank's padded shard of a unit in the compute dtype:

    cast            S      the shard cast to that dtype, if it has another: until the all_gather is under way
    gathered        N S    the all_gather's output, by ranks. In forward it stays until the next unit's output has been
                           copied out, so that copying out and the next all_gather overlap; in backward it is freed
                           when it has itself been copied out
    unsharded       N S    copied out of it: the parameters as modules use them
    whole gradients N S    in the compute dtype, as autograd makes them
    reduce input    N S'   gradients by ranks, in the dtype of the reduction: until the next unit is reduced
    reduce output   S'     this rank's gradients, which stay in it; cast if parameters are held in another dtype

The root stays unsharded from its forward on, since backward begins with it, and reduces last. During a unit's backward,
the gathered parameters of the next unit (prefetched) and the reduce input of the unit before are also live.

With one rank nothing is gathered or sent, but there are copies: unsharded, reduce input and output.

Ours (`shardlab.fsdp`) frees an all_gather's output as soon as it is copied out, in forward too: it needs a unit's N S
less if the peak lies in forward, as with SHARD_GRAD_OP; else both are equal (`shardbench.plan_measured`).

Source: torch.distributed.fsdp._fully_shard, _fsdp_param_group.py and _fsdp_collectives.py of torch 2.13.
"""

from shardplan.memory.live import Live, Terms
from shardplan.planned_job import Setup
from shardplan.records import Term
from shardplan.stage_parameters import Stage, Weight


class Gathering:
    """Engine of FULL_SHARD and SHARD_GRAD_OP. Methods are in the order of a step."""

    def __init__(self, live: Live, setup: Setup, stage: Stage) -> None:
        self.live, self.s, self.n = live, setup.strategy, setup.shards
        self.offloaded = self.s.offload != "none"
        self.replicated = setup.data_ranks > setup.shards
        self.last_unit = stage.n_blocks if self.s.wrap == "block" else 0
        self._root = _Unit("the root", stage.root if self.last_unit else stage.weights, setup)
        self._block, self._dense = (_Unit("a block", weights, setup) for weights in (stage.block, stage.dense))
        self._n_dense = stage.n_dense
        self._unsharded: set[int] = set()
        self._in_use = -1  # the unit that the last all_gather's output belongs to
        self._made: dict[int, float] = {}  # bytes of whole gradients, for each unit
        self._accumulated: set[int] = set()

    def _of(self, unit: int) -> "_Unit":
        return self._root if not unit else self._dense if unit <= self._n_dense else self._block

    # Forward

    def begin(self, sync: bool) -> None:
        self.sync = sync  # whether this micro-batch's backward reduces

    def before_forward(self, unit: int) -> None:
        if unit <= self.last_unit and unit not in self._unsharded:
            self._gather(unit, "forward", f"in use {unit}")
            self._copy_out(unit, "forward")
            self.live.drop(f"in use {self._in_use}")
            self._in_use = unit

    def after_forward(self, unit: int) -> None:
        if self.s.sharding == "FULL_SHARD" and unit:
            self._reshard(unit)

    def end_forward(self) -> None:
        self.live.drop(f"in use {self._in_use}")
        self._in_use = -1

    # Backward

    def begin_backward(self) -> None:
        self._prefetch(self.last_unit)

    def before_backward(self, unit: int) -> None:
        if unit <= self.last_unit and unit not in self._unsharded:
            self._copy_out(unit, "backward")
            self.live.drop(f"prefetched {unit}")
            self._prefetch(unit - 1)

    def made(self, unit: int, names: tuple[str, ...]) -> None:
        """Hold the gradients of these weights, which backward has just made."""
        unit = min(unit, self.last_unit)
        of = self._of(unit)
        new = sum(of.gradient_bytes.get(name, 0.0) for name in names)
        if unit in self._accumulated and not of.accumulates_apart:  # added to the existing gradients
            self.live.hold("new gradient", (Term("temporaries", "the gradient just made, before it is added", new),))
        elif new:
            self._made[unit] = self._made.get(unit, 0.0) + new
            term = Term("unsharded", f"whole gradients of {of.name}, in the dtype of compute", self._made[unit])
            self.live.hold(f"whole gradients {unit}", (term,))

    def moves(self) -> None:
        """Do nothing: autograd writes a gradient where it stays."""

    def moved(self) -> None:
        self.live.drop("new gradient")

    def after_backward(self, unit: int) -> None:
        if unit <= self.last_unit:
            self._reshard(unit)
            (self._reduce if self.sync else self._accumulate)(unit)

    def end_backward(self) -> None:
        self.after_backward(0)
        for name in ("reduce input", *(f"all_reduce input {unit}" for unit in range(self.last_unit + 1))):
            self.live.drop(name)

    def before_optimizer(self) -> None:
        """Do nothing: all gradients are reduced already."""

    # Parameters come and go

    def _gather(self, unit: int, phase: str, held_as: str) -> None:
        """Hold the all_gather's output. Parameters that are cast, or come from the host, are copied once before."""
        of, more = self._of(unit), ()
        if self.n > 1:
            self.live.hold(held_as, of.gathered)
            more = of.cast if of.is_cast or self.offloaded else ()
        self.live.look(f"all_gather of {_name(unit)}", phase, more)

    def _copy_out(self, unit: int, phase: str) -> None:
        self.live.hold(f"unsharded {unit}", self._of(unit).unsharded)
        self.live.look(f"all_gather of {_name(unit)}, copied out", phase)
        self._unsharded.add(unit)

    def _prefetch(self, unit: int) -> None:
        if unit > 0 and unit not in self._unsharded:
            self._gather(unit, "backward", f"prefetched {unit}")

    def _reshard(self, unit: int) -> None:
        self.live.drop(f"unsharded {unit}")
        self._unsharded.discard(unit)

    # Gradients are reduced, or wait

    def _reduce(self, unit: int) -> None:
        live, of = self.live, self._of(unit)
        if not of.trained:
            return
        live.drop("reduce input")
        live.hold("reduce input", of.reduce_input)
        live.look(f"reduce_scatter of {_name(unit)}", "backward")
        for name in ("whole gradients", "accumulated gradients"):
            live.drop(f"{name} {unit}")
        self._made.pop(unit, None)
        self._accumulated.discard(unit)
        self._keep_shard(unit, of)

    def _keep_shard(self, unit: int, of: "_Unit") -> None:
        """Hold the reduced gradient. It is the reduce output, unless it has to be cast, added or sent to the host."""
        live, held, name = self.live, f"gradients {unit}", f"reduced gradients of {_name(unit)}"
        if self.offloaded:
            live.look(name, "backward", of.reduce_output)
            return
        apart = of.casts_gradient or live.holds(held)
        live.hold(held, of.gradient)
        live.look(name, "backward", of.reduce_output if apart else ())
        if of.casts_gradient and self.replicated:  # the all_reduce's input: FSDP2 keeps it until backward ends
            live.hold(f"all_reduce input {unit}", of.reduce_output)

    def _accumulate(self, unit: int) -> None:
        """Add up whole gradients without a reduction, in the reduction's dtype: in a copy if it is another."""
        of = self._of(unit)
        self._accumulated.add(unit)
        if of.accumulates_apart and of.trained:
            self.live.look(f"accumulation of {_name(unit)}", "backward")
            self.live.hold(f"accumulated gradients {unit}", of.accumulated)
            self.live.drop(f"whole gradients {unit}")
            self.live.look(f"accumulation of {_name(unit)}, cast", "backward", of.last_cast)
            self._made.pop(unit, None)


class _Unit:
    """The terms of one unit."""

    def __init__(self, name: str, weights: tuple[Weight, ...], setup: Setup) -> None:
        n, b = setup.shards, setup.strategy.bytes
        trained = [w for w in weights if w.trained]
        self.name, self.trained = name, bool(trained)
        self.gradient_bytes = {w.name: w.gathered_bytes for w in trained}
        shard = sum(w.sent * w.shard_numel(n) for w in weights)
        numel = sum(w.shard_numel(n) for w in trained)
        whole, padded = sum(w.numel for w in trained), sum(w.padded_numel(n) for w in trained)
        unsharded = sum(w.unsharded * w.padded_numel(n) for w in weights)
        sent = sum(w.sent * w.padded_numel(n) for w in weights if w.shared_by(n) > 1)
        self.is_cast = any(w.sent != w.stored for w in weights)
        self.casts_gradient = b.reduce != b.gradients
        self.accumulates_apart = b.reduce != b.compute and not b.autocast
        self.cast = _term("temporaries", f"shard of {name}, cast or copied to be sent", shard, "all_gather")
        self.gathered = _term("buckets", f"all_gather output of {name}, {n} padded shards", sent, "all_gather")
        self.unsharded = _term("unsharded", f"unsharded parameters of {name}", unsharded)
        words = f"reduce_scatter input of {name}, {b.reduce} bytes each"
        self.reduce_input = _term("buckets", words, b.reduce * padded)
        words = f"reduce_scatter output of {name}, 1/{n}, {b.reduce} bytes each"
        self.reduce_output = _term("buckets", words, b.reduce * numel, "reduce_scatter")
        words = f"gradients of {name}, 1/{n}, {b.gradients} bytes each"
        self.gradient = _term("gradients", words, b.gradients * numel, "reduce_scatter")
        words = f"the largest gradient of {name}, while it is cast"
        self.last_cast = _term("unsharded", words, max(self.gradient_bytes.values(), default=0.0))
        words = f"whole gradients of {name} that wait to be reduced, {b.reduce} bytes each"
        self.accumulated = _term("unsharded", words, b.reduce * whole)


def _term(category: str, words: str, n_bytes: float, pool: str = "compute") -> Terms:
    return (Term(category, words, n_bytes, pool),)


def _name(unit: int) -> str:
    return f"block {unit}" if unit else "the root"
