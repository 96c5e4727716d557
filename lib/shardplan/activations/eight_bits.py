"""Products in 8 bits: while they multiply, they hold copies of both factors in 8 bits."""

from shardplan.activations.tape import Tape, Value
from shardplan.strategy import Strategy


def codes(s: Strategy, name: str) -> tuple[bool, bool, bool]:
    """Tell whether this linear layer's products cast activations, and its matrix, to 8 bits, and keep the former so."""
    in_8_bits = s.products != "compute" and s.eight_bits(name)
    return in_8_bits, in_8_bits and s.gather == "compute", in_8_bits and s.inputs_in_8_bits


def in_8_bits(t: Tape, name: str, activations: list[Value], matrix: Value | None = None) -> list[Value]:
    """Make the copies that a product in 8 bits multiplies, if this layer's are: autograd keeps the originals.

    Source: torchao.float8.float8_linear.matmul_with_hp_or_float8_args, compiled, so that no copy is in fp32.
    """
    casts_activations, casts_matrix, _ = t.codes(name)
    found = [t.new(f"factor of {name}", x.dims, 1) for x in activations if casts_activations]
    return found + ([t.new(f"{name}.weight", matrix.dims, 1)] if matrix and casts_matrix else [])


def kept(t: Tape, name: str, x: Value) -> Value:
    """Return what a linear layer keeps of its input x: x, or a copy in 8 bits, one for all layers that read x.

    Source: transformer_engine/pytorch/module/linear.py, where forward saves `inputmat` as it was quantized.
    """
    if x.storage is None or not t.codes(name)[2]:
        return x
    x.in_8_bits = x.in_8_bits or t.new(f"{x.storage.entry.words.split(',')[0]}, in 8 bits", x.dims, 1)
    return x.in_8_bits
