"""Losses: from the last hidden state or its logits to the loss, with all logits at once, chunk by chunk, or fused."""

from shardplan.activations import operations as ops
from shardplan.activations.tape import Tape, Value


def cross_entropy(t: Tape, logits: Value) -> Value:
    """Compute the loss. log_softmax and the loss save one tensor; backward makes two more of its size."""
    dims, itemsize = logits.dims, logits.itemsize
    node = t.node("log_softmax", (logits,), [], lambda g: (t.new("gradient of the logits", dims, itemsize),))
    log_softmax = t.new("log-probabilities", dims, itemsize, node)
    t.save_result(node, log_softmax)
    node = t.node("loss", (log_softmax,), [log_softmax], lambda g: (t.new("gradient of log_softmax", dims, itemsize),))
    loss = t.new("loss", "1", 4, node)
    t.save_result(node, t.new("number of targets", "1", 4))
    return t.keep(loss)


def parallel(t: Tape, logits: Value) -> Value:
    """Compute the loss of logits that tensor-parallel ranks split by tokens of the vocabulary, as `loss_parallel` does.

    Its log_softmax is composed of operations, so forward has three tensors of the logits' size. One backward serves the
    loss and log_softmax: zeros with -1 at the targets, plus exp(log-probabilities), times the incoming gradient. Its
    fullest point has four: log-probabilities, zeros, exponentials and their sum.
    Source: torch/distributed/tensor/parallel/loss.py, _log_softmax and _nll_loss_and_log_softmax_backward.
    """
    dims, itemsize = logits.dims, logits.itemsize
    node = t.node("log_softmax", (logits,), [], lambda g: (g,))
    shifted = t.new("logits less their maximum", dims, itemsize)
    t.new("exponentials", dims, itemsize)
    log_softmax = t.new("log-probabilities", dims, itemsize, node)
    t.save_result(node, log_softmax)
    del shifted

    def backward(g: Value):
        zeros = t.new("zeros, and -1 at the targets", dims, itemsize)
        exponentials = t.new("exponentials", dims, itemsize)
        total = t.new("their sum", dims, itemsize)
        del exponentials
        gradient = t.new("gradient of the logits", dims, itemsize)
        del zeros, total
        return (gradient,)

    node = t.node("loss", (log_softmax,), [log_softmax], backward)
    return t.keep(t.new("loss", "1", 4, node))


def in_place(t: Tape, logits: Value) -> Value:
    """Compute the loss in one kernel. Keeps the logits as computed and a number a row; backward overwrites the logits.

    Source: CrossEntropyLoss(inplace_backward=True) of the flash-attn package, as llm-foundry uses it.
    """
    node = t.node("loss", (logits,), [logits], lambda g: (_handed_on(node),))
    t.save_result(node, t.new("log of the sum of a row", "B T", 4))
    return t.keep(t.new("loss", "1", 4, node))


def _handed_on(node) -> Value:
    first = node.saved[0]
    node.saved.clear()
    return first


def chunked(t: Tape, x: Value, output: str) -> Value:
    """Compute the loss of C tokens at a time: logits, loss, and its backward. See [Note: gradients in forward].

    A chunk goes through torch's own operations and their backward: six tensors of C V come and go (in fp32 four).
    """
    return _gradients_in_forward(t, x, output, _chunk_by_torch)


def fused(t: Tape, x: Value, output: str) -> Value:
    """Compute the loss by chunks, in a kernel that overwrites a chunk's logits with their gradient: one tensor of C V.

    A chunk has as many tokens as make its logits about as large as x: B T / ceil(V / D), rounded up to a power of 2.
    Source: Hsu et al. 2024, "Liger Kernel", section 3.2; liger_kernel/ops/fused_linear_cross_entropy.py, version 0.7.
    """
    return _gradients_in_forward(t, x, output, _chunk_by_kernel)


def _gradients_in_forward(t: Tape, x: Value, output: str, chunk) -> Value:
    """Compute the loss and its gradients.

    [Note: gradients in forward] As the loss comes last, its gradients can be made at once, and the logits freed. Kept
    are the gradients of x and of the weight, (B T + V) D numbers, instead of x and log-probabilities, B T (D + V)
    numbers. Backward scales these gradients in place and passes them on.
    """
    w = ops.weight(t, f"{output}.weight", "V D", x.itemsize)
    x = ops.to(t, x, w.itemsize)
    itemsize, is_trained, w_like = x.itemsize, bool(w.edge), ops.parameter_of(w)

    def backward(g: Value):
        of_x, *of_w = (saved for saved in node.saved)
        node.saved.clear()
        if w_like.node:  # from here on of_w is counted as the parameter's gradient
            del of_w
            return of_x, t.gradient(w_like, "V D", itemsize)
        return of_x, of_w[0] if of_w else None

    node = t.node("loss", (x, w), [], backward)
    t.save_result(node, t.new("gradient of the last norm's result", x.dims, itemsize))
    of_w = t.new(f"gradient of {output}.weight, as it adds up", "V D", itemsize) if is_trained else None
    chunk(t, itemsize, is_trained)
    if of_w:
        t.save_result(node, of_w)
    return t.keep(t.new("loss", "1", 4, node))


def _chunk_by_torch(t: Tape, itemsize: int, is_trained: bool) -> None:
    logits = t.new("logits of a chunk", "C V", itemsize)
    wide = ops.to(t, logits, 4, "logits of a chunk")
    del logits
    log_softmax = t.new("log-probabilities of a chunk", "C V", 4)
    del wide
    of_log_softmax = t.new("gradient of a chunk's log_softmax", "C V", 4)
    of_logits = t.new("gradient of a chunk's logits", "C V", 4)
    del of_log_softmax, log_softmax
    of_logits = ops.to(t, of_logits, itemsize, "gradient of a chunk's logits")
    of_w = t.new("gradient of the weight from a chunk", "V D", itemsize) if is_trained else None
    of_x = t.new("gradient of a chunk of x", "C D", itemsize)
    del of_logits, of_w, of_x


def _chunk_by_kernel(t: Tape, itemsize: int, is_trained: bool) -> None:
    losses = t.new("loss of each token", "B T", 4)
    of_logits = t.new("logits of a chunk, then their gradient", "C V", itemsize)
    of_x = t.new("gradient of a chunk of x", "C D", itemsize)
    del of_x
    if is_trained:
        of_w = t.new("gradient of the weight from a chunk", "V D", itemsize)
        of_w = of_w, ops.to(t, of_w, 4, "gradient of the weight from a chunk, in fp32")
        del of_w
    del losses, of_logits


def by_vocabulary(t: Tape, x: Value, output: str, computed: int) -> Value:
    """Compute each token's log-probability from a part of the vocabulary at a time. Keeps x and a number a token.

    Backward makes the logits again. They have `computed` bytes, by default those of x. A part has as many logits as C
    tokens have with the whole vocabulary.
    Source: prime-rl 2026, src/prime_rl/trainer/models/layers/lm_head.py, _ChunkedLogProbEntropyFn.
    """
    w = ops.weight(t, f"{output}.weight", "V D", x.itemsize)
    x = ops.to(t, x, w.itemsize)
    dims, itemsize, w_like = x.dims, x.itemsize, ops.parameter_of(w)
    is_trained = bool(w.edge)

    def part() -> Value:
        wide_x = t.new("the output layer's input, cast", dims, computed) if computed > itemsize else None
        logits = ops.to(t, t.new("logits of a part", "C V", computed or itemsize), 4, "logits of a part")
        del wide_x
        return logits

    def backward(g: Value):
        of_x = t.new("gradient of the last norm's result", dims, itemsize)
        of_w = t.gradient(w_like, "V D", itemsize) if is_trained else None
        logits = part()
        scaled = t.new("logits of a part, over the temperature", "C V", 4)
        del logits
        shifted = t.new("logits of a part, less the sum", "C V", 4)
        exponentials = t.new("probabilities of a part", "C V", 4)
        del scaled, shifted
        of_logits = t.new("gradient of a part's logits", "C V", 4)
        del exponentials
        of_logits = of_logits, ops.to(t, of_logits, itemsize, "gradient of a part's logits")
        of_x_part = t.new("gradient of x from a part", dims, itemsize)
        del of_logits, of_x_part
        return of_x, of_w

    node = t.node("loss", (x, w), [x, w], backward)
    logits = part()
    scaled = t.new("logits of a part, over the temperature", "C V", 4)
    del logits
    shifted = t.new("logits of a part, less their maximum", "C V", 4)
    exponentials = t.new("exponentials of a part", "C V", 4)
    del scaled, shifted, exponentials
    t.save_result(node, t.new("log of the sum of a row", "B T", 4))
    return t.keep(t.new("loss", "1", 4, node))
