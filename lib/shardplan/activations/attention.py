"""Attention with scores and without: what each kind saves, and what it makes in backward."""

from shardplan.activations import operations as ops
from shardplan.activations.tape import Tape, Value


def flash(t: Tape, q: Value, k: Value, v: Value, result_dims: str) -> Value:
    """Compute attention without scores. Saves q, k, v, its result, and a logsumexp for each query of each head.

    The result's heads are next to each other in memory, so the output layer can use it as it is.
    Source: Dao 2023, "FlashAttention-2", algorithms 1 and 2; aten/src/ATen/native/transformers.
    """
    shapes = [(x.dims, x.itemsize) for x in (q, k, v)]

    def backward(g: Value):
        held = _others_keys(t, *shapes[1]) + _workspace(t, *shapes[0], *shapes[1])
        gradients = tuple(t.new(f"gradient of {name}", *shape) for name, shape in zip("qkv", shapes, strict=True))
        del held
        return gradients

    node = t.node("attention", (q, k, v), [q, k, v], backward)
    itemsize = q.itemsize

    def make() -> tuple[Value, Value]:
        held = _others_keys(t, *shapes[1])  # noqa: F841, to be live meanwhile
        return t.new("attention's result", result_dims, itemsize, node), t.new("logsumexp", "B H T", 4)

    result, logsumexp = t.product("attention", make, node)
    t.save_result(node, result)
    t.save_result(node, logsumexp)
    return result


def _others_keys(t: Tape, dims: str, itemsize: int) -> list[Value]:
    """Gather all keys and values if context-parallel ranks split the positions. Backward gathers them again.

    Source: Llama team 2024, "The Llama 3 Herd of Models", section 3.3.2.
    """
    if t.count("P") == t.count("T"):
        return []
    return [t.new(f"{name}, of all positions", dims.replace("T", "P"), itemsize) for name in ("keys", "values")]


def _workspace(t: Tape, q_dims: str, q_itemsize: int, k_dims: str, k_itemsize: int) -> list[Value]:
    """Allocate the workspace of CUDA's backward kernel: q's gradient in fp32, positions padded to 128; with grouped
    queries, a gradient of k and of v for each query head, before the sum over the group. It is not visible outside.

    Source: mha_bwd in aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp.
    """
    if not t.on_gpu:
        return []
    held = [t.new("q's gradient as it adds up", "B T128 Q", 4), t.new("rows' sums of g y", "B H T128", 4)]
    if t.count(k_dims) < t.count(q_dims):
        held += [t.new(f"gradient of {name} for each query head", q_dims, k_itemsize) for name in "kv"]
    return held


def math(t: Tape, q: Value, k: Value, v: Value) -> Value:
    """Compute attention from torch operations, with the T by T scores and weights of each head, always in fp32.

    Saves the weights once (softmax's result and the product's factor are one tensor) and the other factor of both
    products, which is a copy if heads have to be moved or repeated. One more copy moves the result's heads back.
    Source: _scaled_dot_product_attention_math in aten/src/ATen/native/transformers/attention.cpp.
    """
    grouped, itemsize = t.count(k.dims) < t.count(q.dims), q.itemsize
    q, k, v = (ops.to(t, x, 4, words) for x, words in ((q, "queries"), (k, "keys"), (_moved(t, v), "values")))
    scaled = ops.scale(t, q, "queries, scaled")
    mask = _causal_mask(t)
    all_k, all_v = k, v
    if grouped:
        all_k, all_v = ops.repeat(t, k, "keys for each query head"), ops.repeat(t, v, "values for each query head")
    weights = ops.softmax(t, _masked_scores(t, scaled, all_k, mask, grouped), "attention's weights")
    cast = t.new("attention's weights, returned to nobody", "B H T P", itemsize) if itemsize < 4 else None
    y = ops.matmul(t, weights, all_v if grouped else _heads_first(t, v), q.dims, "attention's result in fp32")
    if _moves(t):
        y = ops.moved(t, y, "gradient of attention's result, heads first")
    y = ops.to(t, y, itemsize, "attention's result")
    del q, k, v, all_k, all_v, scaled, mask, weights, cast
    return ops.copy(t, y, "attention's result, heads beside each other") if t.count("H") > 1 else y


def _causal_mask(t: Tape) -> Value:
    ones = t.new("ones", "T P", 1)
    lower = t.new("lower triangle", "T P", 1)
    del ones
    mask = t.new("mask", "T P", 4)
    del lower
    return mask


def _masked_scores(t: Tape, q: Value, k: Value, mask: Value, grouped: bool) -> Value:
    return ops.add(t, _scores(t, q, ops.scale(t, k, "keys, scaled"), grouped), mask, "scores, masked")


def _scores(t: Tape, q: Value, k: Value, grouped: bool) -> Value:
    return ops.matmul(t, _heads_first(t, q), k if grouped else _heads_first(t, k), "B H T P", "scores")


def _heads_first(t: Tape, x: Value) -> Value:
    return ops.copy(t, x, f"{ops.words_of(x)}, heads first") if _moves(t) else x


def _moves(t: Tape) -> bool:
    """Tell whether heads are copied for bmm's (B H, T, E); for one sequence or one head that is a view."""
    return t.count("B") > 1 and t.count("H") > 1


def _moved(t: Tape, v: Value) -> Value:
    return ops.moved(t, v, "gradient of v, heads beside each other") if t.count("K") > 1 else v
