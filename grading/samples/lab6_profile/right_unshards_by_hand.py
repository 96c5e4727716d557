# %% read_step
from shardtrace.timeline import union, without


def read_step(events, rank, step):
    mine = [e for e in events if e["ph"] == "X" and e["pid"] == rank]
    frame = next(e for e in mine if e["cat"] == "step" and e["name"] == f"step {step}")
    t0, t1 = frame["ts"], frame["ts"] + frame["dur"]

    def when(category, kind="", unit=None):
        chosen = [e for e in mine if e["cat"] == category and e["name"].startswith(kind)]
        cut = [(max(t0, e["ts"]), min(t1, e["ts"] + e["dur"])) for e in chosen if unit in (None, e["args"]["unit"])]
        return union((a, b) for a, b in cut if a < b)

    def length(intervals):
        return sum(b - a for a, b in intervals)

    computing, gathers, scatters = when("compute"), when("link", "all_gather"), when("link", "reduce_scatter")
    sent = union([*gathers, *scatters])
    parts = {
        "computes": length(computing),
        "all_gather": length(without(gathers, computing)),
        "reduce_scatter": length(without(without(scatters, computing), gathers)),
    }
    shares = {k: t / (t1 - t0) for k, t in parts.items()}
    units = {e["args"]["unit"] for e in mine if e["cat"] == "link"}
    return shares | {
        "rest": 1 - sum(shares.values()),
        "hidden": 1 - length(without(sent, computing)) / length(sent),
        "unit": max(units, key=lambda u: length(without(when("link", "all_gather", u), computing))),
    }


# %% build
def build(model):
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


# %% train_step
def train_step(model, optimizer, micro_batches):
    model.zero_grad()
    units = [*model.blocks, model]
    for unit in units:
        unit.set_reshard_after_forward(False)
        unit.set_reshard_after_backward(False)
    for unit in (model, *model.blocks):
        unit.unshard(async_op=True)
    losses = []
    for tokens, targets in micro_batches:
        loss = model(tokens, targets)
        (loss / len(micro_batches)).backward()
        losses.append(loss.item())
    for unit in units:
        unit.reshard()
    optimizer.step()
    mean = torch.tensor(sum(losses) / len(losses))
    dist.all_reduce(mean, op=dist.ReduceOp.SUM)
    return float(mean) / dist.get_world_size()
