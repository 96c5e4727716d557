# %% counts
from math import prod


def block_params(s):
    return s.D * (2 * s.D + 2 * s.K * s.E + 3 * s.F + 2)


def root_params(s):
    return s.D * (2 * s.V + 1)


def kept_bytes(s):
    per_token = 6 * s.D + 2 + 2 * s.H * s.E + 2 * s.K * s.E + s.H + 4 * s.F
    return prod((s.B, s.T, per_token, 4))


FP32 = 4


def elements(s):
    return s.L * block_params(s) + root_params(s)


def activations(s):
    """Elements on top of what is resident, gradients aside: at the loss, in the last block, in the first."""
    tokens, kept = s.B * s.T, kept_bytes(s) // FP32
    loss, working = 3 * tokens * (s.V + s.D), tokens * (2 * s.F + s.D)
    return s.L * kept + loss, s.L * kept + working, kept + working


def fullest(s, with_gradients):
    """Elements."""
    loss, last, first = activations(s)
    if not with_gradients:
        return max(loss, last, first)
    output, down = s.V * s.D, s.F * s.D
    behind = elements(s) - block_params(s) - output
    return max(loss, last + output + down, first + behind + down, elements(s))


# %% one_rank
def predict_one_rank(s):
    held = 3 * elements(s)
    return FP32 * held, FP32 * (held + fullest(s, with_gradients=True))


# %% ddp
def predict_ddp(s):
    held = (1 + 2 + 1) * elements(s)
    return FP32 * held, FP32 * (held + fullest(s, with_gradients=not s.views))


# %% zero1
def predict_zero1(s):
    """A heap of ranks by what they own."""
    import heapq

    of_block = [s.D * s.D] * 2 + [s.D * s.K * s.E] * 2 + [s.D * s.F] * 3 + [s.D] * 2
    heap = [0] * s.N
    for n in sorted(of_block * s.L + [s.V * s.D, s.V * s.D, s.D], key=lambda n: -n):
        heapq.heapreplace(heap, heap[0] + n)
    held = 2 * elements(s) + 2 * max(heap)
    return FP32 * held, FP32 * (held + fullest(s, with_gradients=False))


# %% fsdp
def sharded_peak(s, each, kept, block_again, working):
    """Bytes beyond the shards; `each` bytes for what computes."""
    b = block_params(s)

    def gathered(i):
        return i if not s.reshard else min(2, i)

    def moment(i):
        """In the backward of block i; at the loss for i = L + 1."""
        if i > s.L:
            loss = 12 * s.B * s.T * (s.V + s.D)
            return each * (root_params(s) + b * (1 if s.reshard else s.L)) + s.L * kept + loss
        here = each * (root_params(s) + gathered(i) * b + s.V * s.D + s.F * s.D)
        behind = 4 * (s.L - i) * b / s.N + (4 * b if i != s.L else 0)
        return here + behind + i * kept + block_again + working

    return max(map(moment, range(1, s.L + 2)))


def predict_fsdp(s):
    held = 3 * FP32 * elements(s) / s.N
    working = 4 * s.B * s.T * (2 * s.F + s.D)
    return held, held + sharded_peak(s, 4, kept_bytes(s), 0, working)


# %% fsdp_bf16
def predict_fsdp_bf16(s):
    held = 3 * FP32 * elements(s) / s.N
    inputs, working = 2 * s.T * (s.B * s.D + s.E), 2 * s.B * s.T * (2 * s.F + s.D)
    return held, held + sharded_peak(s, 2, inputs, recomputed_bytes(s), working)
