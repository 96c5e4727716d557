"""LoRA: two narrow trained products, added to a frozen product, whose weight may be stored in 4 bits."""

from shardplan.activations import operations as ops
from shardplan.activations.tape import Tape, Value
from shardplan.strategy import Strategy


def frozen(t: Tape, name: str, x: Value, dims: str, words: str, bias: bool, strategy: Strategy) -> Value:
    """Compute x W^T of a weight that is not trained."""
    if strategy.base_4bit:
        return _from_nf4(t, name, x, dims, words, strategy.compile)
    return ops.linear(t, name, x, dims, words, bias=bias)


def adapted(t: Tape, name: str, x: Value, dims: str, words: str, bias: bool, strategy: Strategy) -> Value:
    """Compute x W^T + s (x A^T) B^T. Saves x, for A's gradient, and x A^T, which has R numbers a token.

    With dropout each adapter keeps an x of its own, with zeros in it, and the mask.
    """
    base = frozen(t, name, x, dims, words, bias, strategy)
    if strategy.lora_dropout:
        x = ops.dropout(t, x, f"{name}'s input after dropout")
    rows, columns, tokens = dims.split()[-1], x.dims.split()[-1], x.dims.rsplit(" ", 1)[0]
    a = ops.linear(t, f"{name}.lora_a", x, f"{tokens} R", f"{words} through A", weight_dims=f"R {columns}")
    b = ops.linear(t, f"{name}.lora_b", a, dims, f"{words} through A and B", weight_dims=f"{rows} R")
    del a
    scaled = ops.scale(t, b, f"{words} through A and B, scaled")
    del b
    return ops.add(t, base, scaled, words)


def _from_nf4(t: Tape, name: str, x: Value, dims: str, words: str, is_fused: bool) -> Value:
    """Compute x W^T. W is dequantised from 4 bits in forward, and again in backward for x's gradient."""
    matrix, x_dims, itemsize = f"{dims.split()[-1]} {x.dims.split()[-1]}", x.dims, x.itemsize

    def backward(g: Value):
        w = _dequantised(t, name, matrix, itemsize, is_fused)
        g_x = t.new(f"gradient of {name}'s input", x_dims, itemsize)
        del w
        return (g_x,)

    node = t.node(name, (x,), [], backward)
    w = _dequantised(t, name, matrix, itemsize, is_fused)
    y = t.product("mm", lambda: t.new(words, dims, itemsize, node), node)
    del w
    return y


def _dequantised(t: Tape, name: str, matrix: str, itemsize: int, is_fused: bool) -> Value:
    """Dequantise in one kernel, as torch.compile or bitsandbytes does, or as torchao does, operation by operation.

    torchao makes two 64-bit table positions for each byte of codes.
    A weight of n numbers needs 8 n bytes for the positions in the table of 16 numbers, and the bytes of 3 n numbers.
    Source: torchao's NF4Tensor.get_original_weight.
    """
    if is_fused:
        return t.new(f"{name}.weight out of 4 bits", matrix, itemsize)
    half = f"{matrix} /2"
    positions = [t.new(f"positions of {name}'s numbers in NF4's table", half, 8) for _ in range(2)]
    looked_up = [t.new(f"{name}'s numbers from the table", half, itemsize) for _ in range(2)]
    scales = t.new(f"{name}'s scales", f"{matrix} /64", itemsize)
    products = []
    for _ in range(2):
        repeated = t.new(f"{name}'s scales for each number", half, itemsize)
        products.append(t.new(f"{name}'s numbers, scaled", half, itemsize))
        del repeated
    w = t.new(f"{name}.weight out of 4 bits", matrix, itemsize)
    del positions, looked_up, scales, products
    return w
