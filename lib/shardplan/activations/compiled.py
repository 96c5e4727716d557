"""A block and the loss under torch.compile: pointwise operations are fused, and few of their results are kept.

[Note: what is kept] Inductor's partitioner cuts the joint graph where the fewest bytes cross. It keeps the results of
products and of attention, and the inputs that products need. What follows from those by pointwise operations is
recomputed in backward, inside the kernel that uses it. So a norm keeps its input and one number a row. The residual
stream inside a block is not kept, but the two tensors that it is the sum of are. The loss keeps the logits as the
product made them, and two numbers a row. Tests check what is kept to the byte. Inductor chooses the order of kernels,
so the fullest points are an estimate.

Source: torch/_functorch/partitioners.py (min_cut_rematerialization_partition).
"""

from shardplan.activations.norms import rows_and_width
from shardplan.activations.operations import parameter_of, words_of
from shardplan.activations.tape import Tape, Value


def never_made(t: Tape, a: Value, b: Value) -> Value:
    """Return the sum of two values that exists only in registers."""
    return Value(None, a.dims, a.itemsize, t.node("sum", (a, b), [], lambda g: (g.alias(), g.alias())))


def norm(t: Tape, name: str, x: Value, saved: list[Value], kind: str = "rms") -> Value:
    """Normalize in one kernel each way, as torch's LayerNorm does without a compiler too. Keeps `saved` (what x is made
    of), and one number a row; a LayerNorm two, in fp32 on a GPU and in x's dtype on a CPU."""
    dims, itemsize, (row, width) = x.dims, x.itemsize, rows_and_width(x)
    names = ("weight", "bias") if kind == "layer" else ("weight",)
    parameters = [t.parameter(f"{name}.{of}", width, itemsize) for of in names]

    def backward(g: Value):
        return t.new(f"gradient of {name}'s input", dims, itemsize), *(
            t.gradient(p, width, itemsize) for p in parameters
        )

    node = t.node(name, (x, *parameters), saved, backward)
    for words in ("mean", "reciprocal deviation") if kind == "layer" else ("reciprocal root mean square",):
        t.save_result(node, t.new(f"{name}'s {words}", row, itemsize if kind == "layer" and not t.on_gpu else 4))
    return t.new(f"{name}'s result", dims, itemsize, node)


def turn(t: Tape, x: Value) -> Value:
    """Rotate x. Keeps only cos and sin, which all blocks share."""
    dims, itemsize, words = x.dims, x.itemsize, f"{words_of(x)}, turned"
    node = t.node(words, (x,), [], lambda g: (t.new(f"gradient of {words}", dims, itemsize),))
    return t.new(words, dims, itemsize, node)


def swiglu(t: Tape, gate: Value, up: Value) -> Value:
    """Compute silu(gate) up. Keeps both inputs and recomputes silu(gate); one gradient overwrites the incoming one."""
    dims, itemsize = gate.dims, gate.itemsize

    node = t.node(
        "silu(gate) up", (gate, up), [gate, up], lambda g: (t.new("gradient of gate", dims, itemsize), g.alias())
    )
    return t.new("silu(gate) up", dims, itemsize, node)


def cross_entropy(t: Tape, logits: Value) -> Value:
    """Compute the loss. Keeps the logits (not in fp32), a row's maximum and log of the sum, no log-probabilities."""
    like = parameter_of(logits)
    node = t.node("loss", (logits,), [logits], lambda g: (t.new("gradient of the logits", like.dims, like.itemsize),))
    for words in ("maximum of a row", "log of the sum of a row"):
        t.save_result(node, t.new(words, "B T", 4))
    t.save_result(node, t.new("number of targets", "1", 4))
    return t.keep(t.new("loss", "1", 4, node))
