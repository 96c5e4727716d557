"""RMSNorm, composed of torch's operations as in the course's model. One in one kernel is in `compiled`."""

from collections.abc import Callable

from shardplan.activations import operations as ops
from shardplan.activations.tape import Tape, Value

HEADS = {"Q": "H", "G": "K"}


def rows_and_width(x: Value) -> tuple[str, str]:
    """Return dims: one number a row, and the norm's parameters. In queries and keys, each head is a row."""
    rows, width = x.dims.rsplit(" ", 1)
    return (f"{rows} {HEADS[width]} 1", "E") if width in HEADS else (f"{rows} 1", width)


def rms_norm(t: Tape, name: str, x: Value, *, casts: int = 2) -> Value:
    """Compose RMSNorm of torch operations in fp32. x is cast for the square and for the product, or once for both."""
    row, width = rows_and_width(x)
    normed = ops.multiply(t, *_x_and_rsqrt(t, name, x, row, casts), f"{name}'s result before its weight")
    weight = t.parameter(f"{name}.weight", width, x.itemsize)
    before = ops.to(t, normed, x.itemsize, f"{name}'s result before its weight")
    return ops.multiply(t, before, weight, f"{name}'s result")


def _x_and_rsqrt(t: Tape, name: str, x: Value, row: str, casts: int) -> tuple[Value, Value]:
    wide = ops.to(t, x, 4, f"{name}'s input")
    again = ops.to(t, x, 4, f"{name}'s input, again") if casts == 2 else wide
    eps_added = _plus_eps(t, _mean(t, _square(t, again), row))
    del again
    return wide, _rsqrt(t, eps_added)


def _square(t: Tape, x: Value) -> Value:
    """Square x. Saves x. Backward: g (2 x^1), where x^1 and 2 x^1 are separate tensors."""
    node = t.node("square", (x,), [x], _by_two_tensors(t, x, "x to the power of 1", "2 x"))
    return t.new("square", x.dims, x.itemsize, node)


def _mean(t: Tape, x: Value, dims: str) -> Value:
    """Take the mean. Saves nothing. Backward divides the expanded gradient into a tensor of x's shape."""
    x_dims, itemsize = x.dims, x.itemsize
    node = t.node("mean", (x,), [], lambda g: (t.new("gradient, over the width", x_dims, itemsize),))
    return t.new("mean", dims, itemsize, node)


def _plus_eps(t: Tape, x: Value) -> Value:
    return t.new("mean + eps", x.dims, x.itemsize, t.node("eps", (x,), [], lambda g: (g.alias(),)))


def _rsqrt(t: Tape, x: Value) -> Value:
    """Compute r = rsqrt(x). Saves r. Backward: (-g/2) r^3, where each factor is a tensor."""
    node = t.node("rsqrt", (x,), [], _by_two_tensors(t, x, "r^3", "-g/2"))
    result = t.new("rsqrt(mean + eps)", x.dims, x.itemsize, node)
    t.save_result(node, result)
    return result


def _by_two_tensors(t: Tape, x: Value, first: str, second: str) -> Callable:
    """Return a backward that makes two tensors of x's size on its way to the gradient."""
    dims, itemsize = x.dims, x.itemsize  # not x itself: backward would keep it alive

    def backward(g: Value):
        held = t.new(first, dims, itemsize), t.new(second, dims, itemsize)
        result = t.new("gradient", dims, itemsize)
        del held
        return (result,)

    return backward
