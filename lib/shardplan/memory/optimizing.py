"""Temporary memory of the optimizer's step, in addition to states and gradients.

Adam computes sqrt(v) / correction + eps in a tensor as large as v. The kernel decides how many of these are live at
once. *forloop* takes one parameter after the other: live are the root, the quotient, and the quotient of the parameter
before, which a variable still holds. *foreach* takes all parameters at once: one list as large as all shards, divided
in place. *fused* keeps it in registers. Clipping by the norm makes scalars only.

Master weights follow `shardlab.precision.MasterWeights`: with any kernel it updates one parameter at a time, and first
casts the gradient if it has 16 bits.

Muon takes one matrix after the other, each (r, c) with r <= c. Not sharded, its update has the gradient's dtype; then
Newton-Schulz holds the old and the new matrix and two (r, r) in 16 bits. Sharded, the updates of all shards are 16 bits
each from the start, and a whole matrix is gathered. If all are sent at once, what arrives and what goes back is as
large.

Source: torch/optim/adamw.py and adam.py, _single_tensor_adam and _multi_tensor_adam; torchao's optim/adam.py.
"""

from shardplan.memory import states
from shardplan.memory.live import total
from shardplan.planned_job import Setup
from shardplan.records import Term
from shardplan.stage_parameters import Stage
from shardplan.traffic.muon import EACH, matrices


def temporaries(setup: Setup, stage: Stage, on_gpu: bool) -> tuple[Term, ...]:
    s, shards = setup.strategy, states.shards_of_states(setup, stage)
    if not shards:
        return ()
    if s.optimizer == "adamw-8bit":
        return (_8bit(max(shards), compiled=on_gpu),)
    if s.optimizer == "muon":
        return max(_muon(setup, stage), _denominator(setup, states.muon_shards(setup, stage)[1]), key=total)
    return (*_cast_gradient(setup, shards), *_denominator(setup, shards))


def _muon(setup: Setup, stage: Stage) -> tuple[Term, ...]:
    b, (by_muon, _) = setup.strategy.bytes, states.muon_shards(setup, stage)
    sides = (m.sides for m in matrices(setup, stage))
    r, c = max(sides, key=lambda of: of[0] * (of[0] + of[1]))
    update = Term("temporaries", f"a matrix's update, {b.gradients} bytes each", b.gradients * r * c)
    if setup.strategy.sharded[0]:
        copies = 3 if setup.strategy.muon_way == "all-at-once" else 1
        words = f"{copies} x updates of all shards, 2 bytes each"
        shards = Term("temporaries", words, copies * EACH * sum(by_muon))
        update = Term("temporaries", "a whole matrix's update, 2 bytes each", EACH * r * c)
    words = "Newton-Schulz: old and new matrix (r, c), two (r, r), 2 bytes each"
    steps = Term("temporaries", words, 2 * EACH * r * (c + r))
    return (*([shards] if setup.strategy.sharded[0] else []), update, steps)


def _cast_gradient(setup: Setup, shards: list[int]) -> tuple[Term, ...]:
    b = setup.strategy.bytes
    words = f"gradient cast to {b.master} bytes each, of the largest shard"
    return (Term("temporaries", words, b.master * max(shards)),) if b.master > b.gradients else ()


def _denominator(setup: Setup, shards: list[int]) -> tuple[Term, ...]:
    s, each = setup.strategy, setup.strategy.bytes.states
    if s.optimizer not in ("adamw", "muon") or s.optimizer_kernel == "fused":
        return ()
    if s.optimizer_kernel == "foreach":
        n, of = (max(shards), "the largest shard") if s.bytes.master else (sum(shards), "all shards")
        return (Term("temporaries", f"sqrt of the second moments, {each} bytes each, of {of}", each * n),)
    before = [0] * len(shards) if s.bytes.master else [0, *shards]  # each master has its own optimizer
    n = max(2 * n + m for n, m in zip(shards, before, strict=False))
    words = "sqrt of the second moment, its quotient, the quotient of the parameter before"
    return (Term("temporaries", words, each * n),)


def _8bit(n: int, compiled: bool) -> Term:
    """Temporaries of torchao's step, one parameter at a time; compiled on a GPU (see shardnext.qlora.AdamW8bit)."""
    words = (
        "weight, moments, and the search for the second one's codes" if not compiled else "weight and moments in fp32"
    )
    return Term("temporaries", f"{words}, of the largest shard", (COMPILED_8BIT if compiled else EAGER_8BIT) * n)


# Bytes an element. In eager mode the search for codes uses indices of 64 bits. Live at once: the weight, both moments
# and the scaled moment in fp32 (16), codes and their neighbours (8 + 8), the values of both (4 + 4), the residual (4),
# the comparison (1) and the chosen codes (8). Compiled, all but the first three stay in registers; that is an upper
# bound from reading the code, not a measurement.
EAGER_8BIT, COMPILED_8BIT = 53, 12
