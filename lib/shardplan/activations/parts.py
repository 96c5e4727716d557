"""Parts of a setup's model: what the embedding, a block and the head make of one micro-batch on one rank."""

from collections.abc import Callable
from functools import partial
from itertools import groupby
from operator import attrgetter

from shardplan.activations.eight_bits import codes
from shardplan.activations.model import Model
from shardplan.activations.regions import Region
from shardplan.activations.sizes import Chosen, Sizes
from shardplan.activations.tape import Snapshot, Tape, Value
from shardplan.planned_job import Setup
from shardplan.records import Part, Point, Term


def embedding(setup: Setup | Chosen, *, on_gpu: bool = False) -> Part:
    """Return the embedding's part, including cos and sin, which every block's rotation saves."""
    t = _tape(setup, on_gpu)
    model = Model(t, setup)

    def forward() -> Value:
        if not setup.shape.learned_positions:
            hold = t.until_loss.append if _casts_inputs(setup) else t.keep
            for turn in model.rotary_angles():
                hold(turn)
        return model.embedding(_itemsize(setup))

    return _part(t, forward, "gradient of the embedding's result")


def block(setup: Setup | Chosen, recomputed: bool, *, first: bool = False, on_gpu: bool = False) -> Part:
    """Return a block's part. `first`: with LoRA, nothing before it is trained, so no gradient flows to its input."""
    t = _tape(setup, on_gpu)
    model = Model(t, setup)
    policy = setup.strategy.recompute if recomputed and setup.strategy.recompute != "pointwise" else "none"

    def forward() -> Value:
        x = t.input("residual stream, the block's input", "B S D", _itemsize(setup))
        if first and setup.strategy.lora_rank:
            x.node = None
        turns = ()
        if _casts_inputs(setup) and not setup.shape.learned_positions:
            turns = model.rotary_angles(setup.strategy.bytes.compute)
        return model.block(x, *turns) if policy == "none" else Region(t, policy, model.block, (x, *turns)).call()

    return _part(t, forward, "gradient of the block's result")


def head(setup: Setup | Chosen, *, on_gpu: bool = False) -> Part:
    """Return the part of the last norm, the output layer and the loss. The loss and its gradient have 4 bytes each."""
    t = _tape(setup, on_gpu)

    def forward() -> Value:
        return Model(t, setup).head(t.input("residual stream, the last block's result", "B S D", _itemsize(setup)))

    return _part(t, forward, "gradient of the loss")


def _tape(setup: Setup | Chosen, on_gpu: bool) -> Tape:
    strategy = setup.strategy
    return Tape(
        Sizes(setup),
        is_trained=lambda name: not strategy.lora_rank or "lora_" in name,
        autocast=strategy.bytes.autocast,
        on_gpu=on_gpu,
        gathers_again=strategy.gather_again,
        codes=partial(codes, strategy),
    )


def _itemsize(setup: Setup | Chosen) -> int:
    """Bytes an element of the residual stream."""
    return 4 if setup.strategy.bytes.autocast else setup.strategy.bytes.compute


def _casts_inputs(setup: Setup | Chosen) -> bool:
    """Tell whether FSDP's MixedPrecisionPolicy casts each unit's inputs: then each block has its own cos and sin."""
    of, is_fsdp = setup.strategy.bytes, setup.strategy.sharding in ("FULL_SHARD", "SHARD_GRAD_OP")
    return is_fsdp and not of.autocast and of.compute < of.parameters


def _part(t: Tape, forward: Callable[[], Value], gradient: str) -> Part:
    y = forward()
    until_loss = [value.storage.entry for value in (*t.casts.values(), *t.until_loss)]
    t.casts.clear()
    t.until_loss.clear()
    kept = tuple(entry for entry in t.live if entry.kept)
    forward_snapshots, t.snapshots = t.snapshots, []
    if y.edge:
        of, gradients = y.edge, [t.input(gradient, y.dims, y.itemsize)]
        del y
        t.backward(of, gradients)
    return Part(
        kept=_terms(kept),
        forward=_point(max(forward_snapshots, key=attrgetter("n_bytes"))),
        backward=tuple(_first_and_fullest(t.snapshots[1:])),
        until_loss=_terms(entry for entry in until_loss if entry not in kept),
    )


def _first_and_fullest(snapshots: list[Snapshot]):
    """Yield two points for each set of gradients made so far: the one that makes the last, and the fullest after it."""
    for _, group in groupby(snapshots, key=attrgetter("gradients")):
        first, *rest = group
        yield _point(first)
        if rest:
            yield _point(max(rest, key=attrgetter("n_bytes")))


def _point(snapshot: Snapshot) -> Point:
    return Point(snapshot.name, _terms(snapshot.live), snapshot.gradients)


def _terms(entries) -> tuple[Term, ...]:
    return tuple(Term("activations" if a.kept else "temporaries", a.words, a.n_bytes) for a in entries)
