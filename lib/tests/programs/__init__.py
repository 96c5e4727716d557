"""Small training programs, drawn by a seed: odd models, and what people do between two steps.

A program runs on every engine with two ranks, and once more in one process on the samples of both, in float64. Allowed
is that an engine's weights, losses and outputs are those of one process, or that it raises an error of our own whose
cause is in the program. Another number, a hang, an error from inside of torch, a wrong blame or memory that stays is a
finding.

    models    what is trained: blocks that return and keep tensors in odd ways
    draw      the program of a seed: a model's blocks, an optimizer, and actions
    engines   what trains it
    run       what each action does: the same code for one process and for ranks
    oracle    comparison with one process, and what else counts as a finding
"""

from programs.draw import Program, draw
from programs.engines import ENGINES
from programs.models import BlockSpec, Net
from programs.oracle import Refused, compare, live_bytes, many

__all__ = ["ENGINES", "BlockSpec", "Net", "Program", "Refused", "compare", "draw", "live_bytes", "many"]
