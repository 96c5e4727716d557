"""A mixture of experts, as torchtitan and Megatron run it: sort tokens by expert, grouped products, weigh and add up.

M counts (token, expert) pairs of this rank, Z for each token. Under expert parallelism an all_to_all brings the tokens
of a rank's experts, and another takes the results back; balanced, a rank gets as many as it sends.
Source: pytorch/torchtitan, torchtitan/models/moe; Gale et al. 2023, "MegaBlocks", section 3, for grouped products.
"""

from collections.abc import Callable

from shardplan.activations import operations as ops
from shardplan.activations.tape import Tape, Value
from shardplan.shape import Experts


def mixture(t: Tape, x: Value, e: Experts, hidden: Callable, linear: Callable, exchanges: bool) -> Value:
    """Compute the mixture of x (B T D). `hidden(name, x, dims, bias)`: a feed-forward before its last product."""
    weights = _router(t, linear("router", x, "B T X", "scores of the experts", e.router_bias), x.itemsize)
    rows = ops.copied(t, x, "M D", "tokens, sorted by expert", indices="B T Z")
    if exchanges:
        rows = ops.copied(t, rows, "M D", "tokens of this rank's experts", kind="all_to_all")
    y = linear("experts.down", hidden("experts", rows, "M W", e.bias), "M D", "experts' results", e.bias)
    del rows
    if exchanges:
        y = ops.copied(t, y, "M D", "experts' results, sent back", kind="all_to_all")
    y = ops.copied(t, y, "M D", "experts' results, sorted by token", indices="B T Z")
    return _weighed(t, y, weights)


def _router(t: Tape, scores: Value, itemsize: int) -> Value:
    """Weigh each token's experts: the Z largest of X probabilities, which are computed in fp32."""
    probabilities = ops.softmax(t, ops.to(t, scores, 4, "scores of the experts"), "probabilities of the experts")
    chosen = ops.copied(t, probabilities, "B T Z", "weights of the chosen experts", indices="B T Z")
    return ops.to(t, chosen, itemsize, "weights of the chosen experts")


def _weighed(t: Tape, y: Value, weights: Value) -> Value:
    """Multiply by the weights, which saves both factors, and add up over each token's experts."""
    (y_dims, w_dims), itemsize = (y.dims, weights.dims), y.itemsize

    def backward(g: Value):
        before_its_sum = t.new("gradient of the weights, before its sum", y_dims, itemsize)
        of_y = t.new("gradient of the experts' results", y_dims, itemsize)
        of_weights = t.new("gradient of the weights", w_dims, itemsize)
        del before_its_sum
        return of_y, of_weights

    node = t.node("weighed results", (y, weights), [y, weights], backward)
    weighed = t.new("weighed results", y_dims, itemsize, node)
    total = ops.copied(t, weighed, "B T D", "the mixture's result", is_view=True)
    del weighed
    return total
