"""The optimizer's step on the GPU: it computes little, so reading and writing memory takes its time.

Number of times that an element of each is read or written:

                        parameter  gradient  each state
    AdamW, fused        2          1         2           one kernel: read all, write all but the gradient
    AdamW, else         4          2         7           see below; the temporary counts with the states
    SGD                 2          1                     the step
    momentum, else      2          1         5           m: scale 2, add g 2 (and g); the step reads m, p, writes p

AdamW's lists: decay p (2); lerp m to g (2, and g); scale v (2), add g squared (2, and g); make a temporary of v: root
(2), correct (2), add eps (2); then p from m, the temporary and p (1, 1, 2).

If there is a master copy, that copy is updated: the gradient is read and cast for it, and the parameter written again.
An 8-bit state is read and written once, because torchao compiles its step.

Muon's momentum for m: scale 2, add g 2 (and g), then g and m make an update (1, and g, and 1), which is read for p: 4.
Newton-Schulz comes in addition (`muon`). Parameters that are not matrices have AdamW.
"""

from shardplan.memory.states import muon_shards, shards_of_states
from shardplan.planned_job import Setup
from shardplan.speed import muon
from shardplan.speed.kernels import moved_s
from shardplan.stage_parameters import Stage
from shardplan.strategy import OPTIMIZERS

# (optimizer, fused): reads and writes of (parameter, gradient, each state); AdamW's states include the temporary
ACCESSES = {
    ("adamw", True): (2, 1, 2),
    ("adamw", False): (4, 2, 7),
    ("adamw-8bit", True): (2, 1, 2),
    ("adamw-8bit", False): (2, 1, 2),
    ("momentum", True): (2, 1, 2),
    ("momentum", False): (2, 1, 5),
    ("sgd", True): (2, 1, 0),
    ("sgd", False): (2, 1, 0),
    ("muon", True): (4, 2, 5),
    ("muon", False): (4, 2, 5),
}
# Of a parameter, unless fused or in lists
OPERATIONS = {"adamw": 8, "adamw-8bit": 1, "momentum": 3, "sgd": 1, "muon": 4}
LISTED = 100  # tensors in one kernel of a list, roughly: the space for its arguments limits them


def optimizer_s(setup: Setup, stage: Stage) -> float:
    """Seconds of the optimizer's step on the GPU; 0 if the host does it."""
    if setup.strategy.offload != "none":
        return 0.0
    if setup.strategy.optimizer == "muon":
        by_muon, by_adamw = muon_shards(setup, stage)
        n_bytes = updated_bytes_each(setup) * sum(by_muon) + updated_bytes_each(setup, "adamw") * sum(by_adamw)
        return moved_s(setup, n_bytes) + muon.newton_schulz_s(setup, stage)
    return moved_s(setup, updated_bytes_each(setup) * sum(shards_of_states(setup, stage)))


def updated_bytes_each(setup: Setup, optimizer: str = "") -> float:
    """Bytes read and written for one element."""
    s, b = setup.strategy, setup.strategy.bytes
    optimizer = optimizer or s.optimizer
    parameter, gradient, state = ACCESSES[optimizer, s.optimizer_kernel == "fused"]
    count, each = OPTIMIZERS[optimizer]
    of_states = count * state * (b.states if each is None else each)
    if not b.master:
        return parameter * b.parameters + gradient * b.gradients + of_states
    cast = b.gradients + b.master if b.gradients < b.master else 0
    return parameter * b.master + gradient * b.master + of_states + cast + b.master + b.parameters


def optimizer_launches(setup: Setup, stage: Stage) -> float:
    s, n = setup.strategy, len(shards_of_states(setup, stage))
    if s.offload != "none":
        return 0.0
    operations = OPERATIONS[s.optimizer]
    if s.optimizer == "muon":
        return operations * n + muon.launches(setup, stage)
    if s.optimizer_kernel == "forloop":
        return operations * n
    return (1 if s.optimizer_kernel == "fused" else operations) * (n / LISTED + 1)
