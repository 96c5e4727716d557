"""The optimizer's step on the GPU: it does next to nothing with each number, so it lasts as long as the numbers travel.

Times that an element of each is read or written:

                        parameter  gradient  each state
    AdamW, fused        2          1         2           one kernel: read all, write all but the gradient
    AdamW, else         4          2         7           see below; the temporary's are counted as the states'
    SGD                 2          1                     the step
    momentum, else      2          1         5           m: scale 2, add g 2 (and g); the step reads m, p, writes p

AdamW's lists: decay p (2); lerp m to g (2, and g); scale v (2), add g squared (2, and g); of v make a temporary: root
(2), correct (2), add eps (2); then p from m, the temporary and p (1, 1, 2).

With a master copy that is what is updated; the gradient is read and cast for it, and the parameter written once more.
In 8 bits a state is read and written once: torchao compiles its step.
"""

from shardplan.memory.states import shards_of_states
from shardplan.setup import Setup
from shardplan.speed.kernels import moved_s
from shardplan.strategy import OPTIMIZERS
from shardplan.weights import Stage

# (optimizer, fused): reads and writes of (parameter, gradient, each state); of AdamW's states, the temporary's too
ACCESSES = {
    ("adamw", True): (2, 1, 2),
    ("adamw", False): (4, 2, 7),
    ("adamw-8bit", True): (2, 1, 2),
    ("adamw-8bit", False): (2, 1, 2),
    ("momentum", True): (2, 1, 2),
    ("momentum", False): (2, 1, 5),
    ("sgd", True): (2, 1, 0),
    ("sgd", False): (2, 1, 0),
}
OPERATIONS = {"adamw": 8, "adamw-8bit": 1, "momentum": 3, "sgd": 1}  # a parameter's, unless fused or in lists
LISTED = 100  # tensors that one kernel of a list takes, about: its arguments' space limits it


def optimizer_s(setup: Setup, stage: Stage) -> float:
    """0 where the host does it."""
    if setup.strategy.offload != "none":
        return 0.0
    return moved_s(setup, updated_bytes_each(setup) * sum(shards_of_states(setup, stage)))


def updated_bytes_each(setup: Setup) -> float:
    """Read and written for one element."""
    s, b = setup.strategy, setup.strategy.bytes
    parameter, gradient, state = ACCESSES[s.optimizer, s.optimizer_kernel == "fused"]
    count, each = OPTIMIZERS[s.optimizer]
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
    if s.optimizer_kernel == "forloop":
        return operations * n
    return (1 if s.optimizer_kernel == "fused" else operations) * (n / LISTED + 1)
