"""torch's operations, one function each: what each one makes and saves in forward, and what it makes in backward.

Only operations that make bytes are here. A view (transpose, reshape, chunk) shares its storage. A product with a
constant saves only the constant.

Source: tools/autograd/derivatives.yaml and torch/csrc/autograd/FunctionsManual.cpp, operation by operation.
"""

from shardplan.activations.eight_bits import in_8_bits, kept
from shardplan.activations.tape import Tape, Value


def to(t: Tape, x: Value, itemsize: int, words: str = "") -> Value:
    """Cast x, unless it has the right dtype already. Saves nothing. Backward casts the gradient back."""
    if x.itemsize == itemsize:
        return x
    dims, before, parameter = x.dims, x.itemsize, parameter_of(x)
    node = t.node("cast", (x,), [], lambda g: (t.gradient(parameter, dims, before, "gradient, cast"),))
    return t.new(words or f"{words_of(x)}, cast", dims, itemsize, node)


def linear(t: Tape, name: str, x: Value, dims: str, words: str, *, weight_dims: str = "", bias: bool = False) -> Value:
    """Compute x W^T, or such a product for each expert's rows of x ("experts.up").

    Saves x for W's gradient, and W for x's. If x can be gathered or made again, a rank saves what that takes.
    """
    rows, columns = dims.split()[-1], x.dims.split()[-1]
    b = weight(t, f"{name}.bias", rows, x.itemsize) if bias else None
    w = weight(t, name if "lora_" in name else f"{name}.weight", weight_dims or f"{rows} {columns}", x.itemsize)
    factor = to(t, x, w.itemsize)  # x is live too: the caller holds it until the product is made
    backward = _linear_backward(t, name, factor, w, b)
    saved = ([kept(t, name, factor.share or factor)] if w.edge else []) + ([w] if x.edge else [])
    node = t.node(name, (factor, w, b) if b else (factor, w), saved, backward)
    itemsize = w.itemsize
    kind = "grouped" if name.startswith("experts.") else "addmm" if bias else "mm"

    def make() -> Value:
        codes = in_8_bits(t, name, [factor], w)  # live until the product is made
        result = t.new(words, dims, itemsize, node)
        del codes
        return result

    return t.product(kind, make, node)


def _linear_backward(t: Tape, name: str, x: Value, w: Value, b: Value | None):
    """Return backward, which makes W's gradient, then x's; with a bias (addmm) x's, W's, the bias's."""
    x_like, w_like, b_like = parameter_of(x), parameter_of(w), parameter_of(b) if b else None
    needs_x, needs_w, gathers = bool(x.edge), bool(w.edge), x.share is not None

    def of_x(g: Value) -> Value | None:
        codes = in_8_bits(t, name, [g], w_like) if needs_x else []
        found = t.new(f"gradient of {name}'s input", x_like.dims, x_like.itemsize) if needs_x else None
        del codes
        return found

    def of_w(g: Value) -> Value | None:
        codes = in_8_bits(t, name, [g, x_like]) if needs_w else []
        again = t.new(f"{name}'s input, made again", x_like.dims, x_like.itemsize) if gathers and needs_w else None
        g_w = t.gradient(w_like, w_like.dims, w_like.itemsize, f"gradient of {name}.weight") if needs_w else None
        del again, codes
        return g_w

    def backward(g: Value):
        if b_like is None:
            g_w = of_w(g)
            return of_x(g), g_w
        return of_x(g), of_w(g), t.gradient(b_like, b_like.dims, b_like.itemsize) if needs_w else None

    return backward


def matmul(t: Tape, a: Value, b: Value, dims: str, words: str) -> Value:
    """Multiply two activations. Saves both. Backward makes the second one's gradient first."""
    like = [(x.dims, x.itemsize) for x in (a, b)]

    def backward(g: Value):
        g_b = t.new("gradient of the second factor", *like[1])
        return t.new("gradient of the first factor", *like[0]), g_b

    node = t.node(words, (a, b), [a, b], backward)
    itemsize = a.itemsize
    return t.product("bmm", lambda: t.new(words, dims, itemsize, node), node)


def moved(t: Tape, x: Value, words: str) -> Value:
    """Return a view. Its gradient arrives with the heads in another place, and has to be copied."""
    dims, itemsize = x.dims, x.itemsize
    return x.alias(t.node("view", (x,), [], lambda g: (t.new(words, dims, itemsize),)))


def multiply(t: Tape, a: Value, b: Value, words: str) -> Value:
    """Multiply. Saves each factor for the other's gradient. A broadcast factor gets the sum of a full-size gradient."""
    dims, itemsize, a_needs, b_needs = a.dims, a.itemsize, bool(a.edge), bool(b.edge)
    b_dims, b_like, of_b = b.dims, parameter_of(b), words_of(b)

    def backward(g: Value):
        g_b = t.new(f"gradient of {of_b}, before its sum", dims, itemsize) if b_needs else None
        g_a = t.new("gradient", dims, itemsize) if a_needs else None
        if b_needs and b_dims != dims:
            g_b = t.gradient(b_like, b_dims, itemsize)
        return g_a, g_b

    node = t.node("product", (a, b), ([b] if a_needs else []) + ([a] if b_needs else []), backward)
    return t.new(words, dims, itemsize, node)


def scale(t: Tape, x: Value, words: str, by: Value | None = None) -> Value:
    """Multiply by a constant. If the constant is a tensor, it is saved."""
    dims, itemsize = x.dims, x.itemsize
    saved = [by] if by else []
    node = t.node(words, (x,), saved, lambda g: (t.new(f"gradient of {words}", dims, itemsize),))
    return t.new(words, dims, itemsize, node)


def add(t: Tape, a: Value, b: Value, words: str, *, minus: bool = False) -> Value:
    """Add. Saves nothing. Backward gives both the same gradient; only a change of sign or dtype makes a tensor."""
    of_a, of_b = a.itemsize, b.itemsize
    dims, itemsize = a.dims, max(of_a, of_b)

    def hand(g: Value, of: int) -> Value:
        return g.alias() if of == g.itemsize else t.new("gradient, cast", g.dims, of)

    def backward(g: Value):
        return hand(g, of_a), t.new("gradient, negative", dims, itemsize) if minus else hand(g, of_b)

    return t.new(words, dims, itemsize, t.node("sum", (a, b), [], backward))


def chunk(t: Tape, x: Value, half: str, other_half: str = "") -> tuple[Value, Value]:
    """Split into two views, halves if only one is named. Backward joins the two gradients in one tensor."""
    dims, itemsize = x.dims, x.itemsize
    node = t.node("chunk", (x,), [], lambda g1, g2: (t.new("gradient, joined", dims, itemsize),))
    return x.alias(node, 0, half), x.alias(node, 1, other_half or half)


def cat(t: Tape, a: Value, b: Value, dims: str, words: str) -> Value:
    """Concatenate two halves. Backward gives each half a view of the gradient."""
    half = a.dims
    node = t.node("cat", (a, b), [], lambda g: (g.alias(dims=half), g.alias(dims=half)))
    return t.new(words, dims, a.itemsize, node)


def joined(t: Tape, a: Value, b: Value, dims: str, words: str) -> Value:
    """Concatenate each head's own part and one part of all heads, whose gradient is summed over the heads."""
    of_a, of_b = a.dims, b.dims
    node = t.node(
        "join", (a, b), [], lambda g: (g.alias(dims=of_a), t.new(f"gradient of {words}, summed", of_b, g.itemsize))
    )
    return t.new(words, dims, a.itemsize, node)


def copy(t: Tape, x: Value, words: str) -> Value:
    """Copy x. Saves nothing. Backward passes the gradient on, as a view."""
    node = t.node("copy", (x,), [], lambda g: (g.alias(),))
    return t.new(words, x.dims, x.itemsize, node)


def gather(t: Tape, x: Value, words: str) -> Value:
    """Gather all positions, if the tensor-parallel ranks split them. Backward sums and scatters the gradient."""
    share = x.share or (x if t.gathers_again else None)
    gathered = _exchange(t, x, x.dims.replace("S", "T"), words, "all_gather")
    if x.share or gathered.storage is not x.storage:
        gathered.share = share
    return gathered


def made_again(x: Value) -> Value:
    """Mark x: the products that read it keep nothing of it, and backward makes it again for each weight's gradient."""
    x.share = Value(None, x.dims, x.itemsize)
    return x


def scatter(t: Tape, x: Value, words: str) -> Value:
    """Sum over the tensor-parallel ranks; each gets its share of the positions. Backward gathers."""
    return _exchange(t, x, x.dims.replace("T", "S"), words, "reduce_scatter")


def _exchange(t: Tape, x: Value, dims: str, words: str, kind: str) -> Value:
    """Exchange positions. If a rank has all of them, make no tensor: a sum over ranks is made in place."""
    if t.count(dims) == t.count(x.dims):
        return x.alias(x.node, x.output, dims)
    before, itemsize = x.dims, x.itemsize
    node = t.node("exchange", (x,), [], lambda g: (t.new(f"gradient of {words}, exchanged", before, itemsize),))
    return t.product(kind, lambda: t.new(words, dims, itemsize, node), node)


def dropout(t: Tape, x: Value, words: str) -> Value:
    """Drop some of x. Saves the mask: a byte an element on a GPU, which has one kernel for it, x's bytes on a CPU.

    Source: aten/src/ATen/native/Dropout.cpp, is_fused_kernel_acceptable and _dropout_impl.
    """
    dims, itemsize = x.dims, x.itemsize
    mask = t.new("dropout's mask", dims, 1 if t.on_gpu else itemsize)
    node = t.node("dropout", (x,), [mask], lambda g: (t.new(f"gradient of {words}", dims, itemsize),))
    return t.new(words, dims, itemsize, node)


def all_but_last(t: Tape, x: Value, dims: str, words: str) -> Value:
    """Copy all positions but the last. Backward writes the gradient into zeros of x's size."""
    before, itemsize = x.dims, x.itemsize
    node = t.node("shift", (x,), [], lambda g: (t.new(f"gradient of {words}, and a zero", before, itemsize),))
    return t.new(words, dims, itemsize, node)


def copied(
    t: Tape, x: Value, dims: str, words: str, *, indices: str = "", kind: str = "", is_view: bool = False
) -> Value:
    """Copy elements of x, or sums of some, into a tensor of another shape. Saves nothing but indices of 8 bytes.

    `kind`: of a message, which a region may keep. `is_view`: backward expands the gradient without a copy.
    """
    before, itemsize = x.dims, x.itemsize

    def backward(g: Value):
        return (g.alias(dims=before) if is_view else t.new(f"gradient of {words}", before, itemsize),)

    node = t.node(words, (x,), [], backward)
    if indices:
        t.save_result(node, t.new(f"order of {words}", indices, 8))
    if kind:
        return t.product(kind, lambda: t.new(words, dims, itemsize, node), node)
    return t.new(words, dims, itemsize, node)


def with_parameter(t: Tape, name: str, x: Value, dims: str) -> Value:
    """Return x, to which the kernel that made it has brought a small parameter. Its gradient is made in backward."""
    p, itemsize = t.parameter(name, dims, x.itemsize), x.itemsize
    return x.alias(t.node(name, (x, p), [], lambda g: (g.alias(), t.gradient(p, dims, itemsize))))


def repeat(t: Tape, x: Value, words: str) -> Value:
    """Repeat each key/value head for each query head of its group. Backward sums over the group."""
    dims, itemsize = x.dims, x.itemsize
    node = t.node("repeat", (x,), [], lambda g: (t.new("gradient, summed over the group", dims, itemsize),))
    return t.new(words, dims.replace("G", "Q"), itemsize, node)


def activation(t: Tape, x: Value, words: str) -> Value:
    """Apply silu or gelu. Saves the input."""
    dims, itemsize = x.dims, x.itemsize
    node = t.node(words, (x,), [x], lambda g: (t.new(f"gradient of {words}'s input", dims, itemsize),))
    return t.new(words, dims, itemsize, node)


def softmax(t: Tape, x: Value, words: str) -> Value:
    """Apply softmax. Saves the result."""
    dims, itemsize = x.dims, x.itemsize
    node = t.node(words, (x,), [], lambda g: (t.new("gradient of the scores", dims, itemsize),))
    result = t.new(words, dims, itemsize, node)
    t.save_result(node, result)
    return result


def lookup(t: Tape, name: str, dims: str, table: str, itemsize: int, words: str, *, tied: bool = False) -> Value:
    """Look up rows. Saves the indices. Backward makes a gradient of the whole table, most of it zeros.

    If the matrix is tied, the output layer's gradient waits for this one, and the sum of both is a third tensor.
    """
    of = t.parameter(name, table, itemsize)

    def backward(g: Value):
        if tied:
            own = t.new(f"gradient of {name}, the embedding's part", table, itemsize)
            total = t.new(f"gradient of {name}, both parts", table, itemsize)
            del own, total
        else:
            t.gradient(of, table, itemsize)
        return (None,)

    return t.new(words, dims, itemsize, t.node(words, (of,), [], backward))


def weight(t: Tape, name: str, dims: str, itemsize: int) -> Value:
    """Return the weight as it computes: under autocast a cast, made at the first use and held until autocast ends."""
    if name in t.casts:
        return t.casts[name]
    if not t.autocast:
        return t.parameter(name, dims, itemsize)
    t.casts[name] = to(t, t.parameter(name, dims, 4), 2, f"cast of {name}")
    return t.casts[name]


def words_of(x: Value) -> str:
    return x.storage.entry.words.split(",")[0] if x.storage else "a parameter"


def parameter_of(x: Value) -> Value:
    """Return x without its storage: dims, itemsize and, if it is a parameter, the node that gets its gradient."""
    return Value(None, x.dims, x.itemsize, x.node if x.node and x.node.parameter else None)
