# %% counts
def matrices(s):
    """Rows and columns of a block's seven."""
    kv = s.K * s.E
    return [(s.D, s.D), (kv, s.D), (kv, s.D), (s.D, s.D), (s.F, s.D), (s.F, s.D), (s.D, s.F)]


def block_params(s):
    return sum(rows * columns for rows, columns in matrices(s)) + s.D + s.D


def root_params(s):
    embedding = output = s.V * s.D
    return embedding + s.D + output


def kept_bytes(s):
    widths = {
        "the block's input": s.D,
        "1/rms": 1,
        "normed": s.D,
        "normed, weighted": s.D,
        "queries": s.H * s.E,
        "keys": s.K * s.E,
        "values": s.K * s.E,
        "attention's result": s.H * s.E,
        "logsumexp": s.H,
        "residual": s.D,
        "1/rms again": 1,
        "normed again": s.D,
        "normed and weighted again": s.D,
        "gate": s.F,
        "silu of the gate": s.F,
        "up": s.F,
        "their product": s.F,
    }
    return 4 * s.B * s.T * sum(widths.values())


class Ledger:
    """What is live, by name; remembers the fullest moment."""

    def __init__(self, **held):
        self.live, self.most = dict(held), 0

    def now(self, **changes):
        self.live.update(changes)
        self.most = max(self.most, sum(self.live.values()))


def train(s, ledger, kept, working, on_forward, on_block, inside=0):
    """Walks through one step. on_forward() and on_block(i) say what the engine holds."""
    ledger.now(kept=s.L * kept, loss=12 * s.B * s.T * (s.V + s.D), **on_forward())
    ledger.now(loss=0)
    for i in reversed(range(1, s.L + 1)):
        ledger.now(kept=i * kept, working=working + inside, **on_block(i))
    ledger.now(kept=0, working=0)


def whole_model(s):
    return root_params(s) + s.L * block_params(s)


# %% one_rank
def predict_one_rank(s):
    p = whole_model(s)
    ledger = Ledger(parameters=4 * p, moments=8 * p)
    resident = sum(ledger.live.values())

    def gradients(i):
        return {"gradients": 4 * (s.V * s.D + s.D * s.F + (s.L - i) * block_params(s))}

    train(s, ledger, kept_bytes(s), 4 * s.B * s.T * (2 * s.F + s.D), dict, gradients)
    ledger.now(gradients=4 * p)
    return resident, ledger.most


# %% ddp
def predict_ddp(s):
    p = whole_model(s)
    ledger = Ledger(parameters=4 * p, moments=8 * p, buckets=4 * p)
    resident = sum(ledger.live.values())

    def gradients(i):
        return {} if s.views else {"gradients": 4 * (s.V * s.D + s.D * s.F + (s.L - i) * block_params(s))}

    train(s, ledger, kept_bytes(s), 4 * s.B * s.T * (2 * s.F + s.D), dict, gradients)
    if not s.views:
        ledger.now(gradients=4 * p)
    return resident, ledger.most


# %% zero1
def predict_zero1(s):
    sizes = [s.V * s.D] * 2 + [s.D] * (2 * s.L + 1)
    for _ in range(s.L):
        sizes += [rows * columns for rows, columns in matrices(s)]
    owned = [0] * s.N
    for size in sorted(sizes)[::-1]:
        owned[owned.index(min(owned))] += size
    p = whole_model(s)
    ledger = Ledger(parameters=4 * p, buckets=4 * p, moments=8 * max(owned))
    resident = sum(ledger.live.values())
    train(s, ledger, kept_bytes(s), 4 * s.B * s.T * (2 * s.F + s.D), dict, lambda i: {})
    return resident, ledger.most


# %% fsdp
def fsdp_engine(s, each):
    """What is whole, and what is on its way, with so many bytes for what computes."""
    block = block_params(s)

    def at_loss():
        return {"root": each * root_params(s), "blocks": each * block * (1 if s.reshard else s.L)}

    def at_block(i):
        blocks = i if not s.reshard else 2 if i > 1 else 1
        return {
            "blocks": each * block * blocks,
            "whole gradients": each * (s.V * s.D + s.D * s.F),
            "to be reduced": 4 * block * (i < s.L),
            "reduced": 4 * (s.L - i) * block // s.N,
        }

    return at_loss, at_block


def predict_fsdp(s):
    resident = 12 * whole_model(s) // s.N
    ledger = Ledger(states=resident)
    train(s, ledger, kept_bytes(s), 4 * s.B * s.T * (2 * s.F + s.D), *fsdp_engine(s, 4))
    return resident, ledger.most


# %% fsdp_bf16
def predict_fsdp_bf16(s):
    resident = 12 * whole_model(s) // s.N
    ledger = Ledger(states=resident)
    inputs, working = 2 * s.B * s.T * s.D + 2 * s.T * s.E, 2 * s.B * s.T * (2 * s.F + s.D)
    train(s, ledger, inputs, working, *fsdp_engine(s, 2), inside=recomputed_bytes(s))
    return resident, ledger.most
