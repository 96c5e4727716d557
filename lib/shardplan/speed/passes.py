"""Memory-bound work: operations that compute little, so reading and writing memory takes their time.

In eager mode every operation reads its operands from the GPU's memory and writes its result there, and so does each of
its gradients. The table lists the operations of `model.py`, in bytes an element; c is the bytes of the compute dtype (2
for bf16; then all that runs in fp32 is cast before and after, for 4 + c bytes each time).

                    forward                                    backward
    RMSNorm         square 8, mean 4, scale 8, weight 2c       weight and its sum 6c, scale 24, square and mean 32,
                    cast 2 (4 + c), back 4 + c                 gradients added up 3c, cast 3 (4 + c)
    rotary          products of halves 16, difference and      the same, and 4 to add up
                    sum 12, put together 8, cast, back
    SwiGLU          silu 2c, product 3c                        9c
    residual        3c, twice a block                          3c: two gradients added up
    shared inputs   none                                       3c for each product but the first that reads one
    cross-entropy   cast 4 + c, log-softmax 8; a logit         its gradient 4, through log-softmax 12, cast
      by vocabulary times the temperature 12, maximum 4,   again 12, less the sum 8, exponential 8, gradient 8,
                    less it 8, exponential 8, sum 4,       times the temperature 8, cast 6; a logit
                    times the logits 12, sum 4; a logit
    LayerNorm, GELU 2c, one kernel each, as a fused RMSNorm    3c

    casts to fp8    for each input and each matrix of a product,  the same again, and for each incoming gradient
                    5: read for the largest, read, write 1

A matrix that was gathered in fp8 needs no cast. Products with one input share its cast. MX needs no look at the whole
tensor: 3 and a scale for 32.

torch.compile fuses neighbours: a chain reads its inputs and writes its result once, in c bytes. `compile` compiles the
blocks; for a compiled loss, see `cross_entropy`.
"""

from dataclasses import dataclass

from shardplan.flops import block_products
from shardplan.planned_job import Setup
from shardplan.traffic.model_parallel import tensor_sends

CASTS = "casts to 8 bits"
SHARE = ("key", "value", "kv_a", "up")  # their input is that of a product before


@dataclass(frozen=True)
class Pass:
    """Bytes read and written, and kernels launched, for one micro-batch on one GPU: (forward, backward) of each."""

    name: str
    n_bytes: tuple[float, float]
    launches: tuple[int, int]


def block_passes(setup: Setup) -> list[Pass]:
    shape, t = setup.shape, setup.strategy.tensor
    stream, c = _stream_elements(setup), _wide(setup)
    rotated = setup.tokens * (shape.q_dim + shape.kv_dim) / t
    fused = setup.strategy.compile
    shared = 3 if shape.gated else 2  # queries, keys and values read one input; gate and up another
    found = [
        *(2 + shape.post_norms) * [_norm(setup, stream)],
        *2 * [_pass("residual", stream, 2.5 * c if fused else 3 * c, c if fused else 3 * c, (1, 1))],
        _pass("shared inputs", shared * stream, 0, c if fused else 3 * c, (0, 0 if fused else shared)),
        *_activations(setup),
    ]
    if not shape.learned_positions:
        found += [_rotary(setup, setup.tokens * dim / t) for dim in (shape.q_dim, shape.kv_dim)]
    if shape.qk_norm:
        found.append(_norm(setup, rotated))
    if setup.strategy.bytes.autocast:
        casts = 3 + (2 if shape.gated else 1)
        found.append(_pass("casts of inputs", casts * setup.tokens * shape.dim, 4 + 2, 4 + 2, (casts, casts)))
    if setup.strategy.products != "compute":
        found.append(_casts(setup))
    if setup.strategy.context > 1:
        found += _ring(setup)
    if t > 1 and _copies_messages(setup):
        found.append(_exchanged(setup))
    if setup.strategy.attention == "math":
        found.append(_scores(setup))
    return found + _lora(setup)


def embedding_passes(setup: Setup) -> list[Pass]:
    """Passes of the embedding. Backward makes a gradient of the whole table and adds to the looked-up rows."""
    c, table = _wide(setup), setup.shape.vocab_size * setup.shape.dim / setup.strategy.tensor
    elements = _stream_elements(setup)
    return [_pass("embedding", elements, 2 * c, 3 * c, (1, 1)), _pass("its gradient", table, 0, c, (0, 1))]


def head_passes(setup: Setup) -> list[Pass]:
    s, c = setup.strategy, setup.strategy.bytes.compute
    logits = setup.tokens * setup.shape.vocab_size / (s.tensor if s.loss_parallel else 1)
    if s.cross_entropy == "fused":  # reads the logits twice, and overwrites them with their gradient: all in forward
        each = (3 * c, 0)
    elif s.cross_entropy == "in-place":  # reads them; backward reads and overwrites them with their gradient
        each = (c, 2 * c)
    elif s.cross_entropy == "compiled":  # reads them for maximum and sum; backward reads them and writes their gradient
        each = (2 * c, 2 * c)
    elif s.cross_entropy == "vocabulary":  # see the table
        each = (52, 50)
    elif s.cross_entropy == "plain":  # as the others below, without casts
        each = (2 * c, 4 * c)
    else:
        copied = (8, 8) if s.cross_entropy == "shifted" else (0, 0)  # to the copy, and from its gradient
        each = (8 + _cast(c) + copied[0], 16 + _cast(c) + copied[1])
    chunks = s.cross_entropy_chunks if s.cross_entropy in ("chunked", "vocabulary") else 1
    per_chunk = (13, 13) if s.cross_entropy == "vocabulary" else (3, 4)
    return [
        _norm(setup, _stream_elements(setup)),
        _pass("cross-entropy", logits, *each, (per_chunk[0] * chunks, per_chunk[1] * chunks)),
    ]


def _norm(setup: Setup, elements: float) -> Pass:
    c = _wide(setup)
    one_kernel = setup.strategy.compile or setup.strategy.norm_kernel == "fused" or setup.shape.norm == "layer"
    if one_kernel:
        return _pass("norm", elements, 2 * c, 3 * c, (1, 1))
    casts = (2 if setup.strategy.norm_kernel == "one-cast" else 3) * _cast(c)
    return _pass("norm", elements, 20 + 2 * c + casts, 56 + 9 * c + casts, (9, 17) if c < 4 else (6, 14))


def _rotary(setup: Setup, elements: float) -> Pass:
    c = setup.strategy.bytes.compute
    if setup.strategy.compile:
        return _pass("rotary", elements, 2 * c, 2 * c, (1, 1))
    return _pass("rotary", elements, 36 + 2 * _cast(c), 40 + 2 * _cast(c), (9, 10) if c < 4 else (7, 8))


def _activations(setup: Setup) -> list[Pass]:
    e, t = setup.shape.experts, setup.strategy.tensor
    if not e:
        return [_activation(setup, setup.tokens * setup.shape.hidden_dim / t)]
    shared = [_activation(setup, setup.tokens * e.shared_dim / t)] if e.shared_dim else []
    return [_activation(setup, setup.routed * e.hidden_dim / t), *shared, *_mixture(setup)]


def _mixture(setup: Setup) -> list[Pass]:
    """Passes of a mixture: probabilities in fp32; tokens are copied by expert and back, weighed, and added up."""
    e, c = setup.shape.experts, setup.strategy.bytes.compute
    rows = setup.routed * setup.shape.dim
    return [
        _pass("probabilities", setup.tokens * e.number, 8 + _cast(c), 12 + _cast(c), (4, 4)),
        _pass("tokens by expert and back", rows, 4 * c, 5 * c, (4, 4)),
        _pass("weighed results", rows, 3 * c, 4 * c, (2, 3)),
    ]


def _activation(setup: Setup, hidden: float) -> Pass:
    c = setup.strategy.bytes.compute
    if not setup.shape.gated:
        return _pass("gelu", hidden, 2 * c, 3 * c, (1, 1))
    if setup.strategy.compile:
        return _pass("swiglu", hidden, 3 * c, 5 * c, (1, 1))
    return _pass("swiglu", hidden, 5 * c, 9 * c, (2, 3))


def _casts(setup: Setup) -> Pass:
    """Casts to 8 bits of a block's products: see the table."""
    s = setup.strategy
    found = [p for p in block_products(setup) if s.eight_bits(p.name)]
    inputs = sum(p.rows * p.inner for p in found if not p.name.endswith(SHARE))
    matrices = sum(p.inner * p.columns for p in found) if s.gather == "compute" else 0.0
    gradients = sum(p.rows * p.columns for p in found)
    each = 3 + 1 / 32 if s.products == "mxfp8" else 5
    n = len(found)
    return Pass(CASTS, (each * (inputs + matrices), each * (inputs + matrices + gradients)), (2 * n, 3 * n))


def _copies_messages(setup: Setup) -> bool:
    s = setup.strategy
    return s.sequence_parallel and not s.sequence_first and not s.async_tensor


def _exchanged(setup: Setup) -> Pass:
    """Copies of what tensor-parallel ranks gather and scatter: chunks of positions are put side by side, or apart.

    Source: torch/distributed/_functional_collectives.py, all_gather_tensor and reduce_scatter_tensor, which do so for
    every dimension but the first. Messages that travel in hops (`async_tensor`) go where they belong.
    """
    sends = [tensor_sends(setup, False)[way] for way in ("forward", "backward")]
    n_bytes = tuple(sum(2 * send.times * send.full_bytes for send in of) for of in sends)
    return Pass("copies for tensor parallelism", n_bytes, tuple(sum(send.times for send in of) for of in sends))


def _scores(setup: Setup) -> Pass:
    """Attention without flash: scale, mask and softmax each read and write the (B, H, T, T) scores."""
    c = setup.strategy.bytes.compute
    scores = setup.tokens * setup.strategy.seq_len * setup.shape.n_heads / setup.strategy.tensor
    return _pass("scores", scores, 2 * c if setup.strategy.compile else 6 * c, 5 * c, (3, 3))


def _ring(setup: Setup) -> list[Pass]:
    """Passes of context parallelism. After each rank's keys, results and gradients so far are added up in fp32.

    Forward casts the new result (c + 4), subtracts (12), weighs (8), and subtracts from the old one (12). Backward adds
    a gradient of c bytes to one of 4, for queries, keys and values, and copies those of keys and values to send them.
    Source: torch/distributed/tensor/experimental/_attention.py, _SDPAMerger and _templated_ring_attention_backward.
    """
    s, shape, c = setup.strategy, setup.shape, setup.strategy.bytes.compute
    queries, keys = (setup.tokens * width / s.tensor for width in (shape.q_dim, 2 * shape.kv_dim))
    steps = s.context - 1
    return [
        _pass("the ring's results", steps * queries, c + 36, c + 8, (4 * steps, steps)),
        _pass("the ring's gradients", steps * keys, 0, c + 16, (0, 2 * steps)),
    ]


def _lora(setup: Setup) -> list[Pass]:
    """Passes of LoRA: scale and add the narrow products; make a 4-bit base whole, forward and backward."""
    s, c = setup.strategy, setup.strategy.bytes.compute
    if not s.lora_rank:
        return []
    wide = [p for p in block_products(setup) if p.frozen]
    adapted = [p for p in wide if s.adapts(p.name)]
    n = 2 * len(adapted)
    found = [_pass("LoRA's sums", sum(p.rows * p.columns for p in adapted), 5 * c, 5 * c, (n, n))]
    if s.lora_dropout:  # reads and writes an input, and a byte of mask
        found.append(_pass("dropout", sum(p.rows * p.inner for p in adapted), 2 * c + 1, 2 * c + 1, (n // 2, n // 2)))
    n = len(wide)
    if s.base_4bit:
        each = c + 1 if s.compile else 19 + 7 * c  # unpack 2, widen 9, look up 4 + 3c, scale 3c, put together 4 + c
        found.append(
            _pass("weights out of 4 bits", sum(p.inner * p.columns for p in wide), each, each, (10 * n, 10 * n))
        )
    return found


def _pass(name: str, elements: float, forward: float, backward: float, launches: tuple[int, int]) -> Pass:
    return Pass(name, (elements * forward, elements * backward), launches)


def _cast(c: int) -> int:
    """Bytes an element of a cast between c bytes and fp32."""
    return 4 + c if c < 4 else 0


def _stream_elements(setup: Setup) -> float:
    """Elements of the residual stream for which a GPU computes norms and sums."""
    s = setup.strategy
    return setup.tokens / (s.tensor if s.sequence_parallel else 1) * setup.shape.dim


def _wide(setup: Setup) -> int:
    """Bytes an element of the residual stream. Under autocast it has the dtype of the embedding's weight."""
    b = setup.strategy.bytes
    return b.parameters if b.autocast else b.compute
