"""Products in 8 bits: while they multiply, they hold copies of both factors in 8 bits."""

from shardplan.activations.tape import Tape, Value
from shardplan.strategy import Strategy


def codes(s: Strategy, name: str) -> tuple[bool, bool]:
    """Tell whether this linear layer's products cast activations, and its matrix, to 8 bits."""
    in_8_bits = s.products != "compute" and s.eight_bits(name)
    return in_8_bits, in_8_bits and s.gather == "compute"


def in_8_bits(t: Tape, name: str, activations: list[Value], matrix: Value | None = None) -> list[Value]:
    """Make the copies that a product in 8 bits multiplies, if this layer's are: autograd keeps the originals.

    Source: torchao.float8.float8_linear.matmul_with_hp_or_float8_args, compiled, so that no copy is in fp32.
    """
    casts_activations, casts_matrix = t.codes(name)
    found = [t.new(f"factor of {name}", x.dims, 1) for x in activations if casts_activations]
    return found + ([t.new(f"{name}.weight", matrix.dims, 1)] if matrix and casts_matrix else [])
