# %% read_step
def read_step(events, rank, step):
    moments, whole = {}, None
    for e in events:
        if e["ph"] == "X" and e["pid"] == rank:
            interval = (e["ts"], e["ts"] + e["dur"])
            if e["cat"] == "step":
                whole = interval if e["name"].split()[1] == str(step) else whole
                continue
            kind = e["cat"] if e["cat"] != "link" else e["name"].split()[0]
            moments.setdefault((kind, e["args"]["unit"]), []).append(interval)
    times = [t for some in moments.values() for one in some for t in one]
    edges = torch.tensor([*whole, *times], dtype=torch.float64)
    edges = edges.clamp(*whole).unique()  # sorted
    lengths = edges.diff()

    def covered(kind, unit=None):
        mask = torch.zeros(len(lengths), dtype=torch.bool)
        for (k, u), some in moments.items():
            if k == kind and unit in (None, u):
                for begin, end in some:
                    mask |= (edges[:-1] >= begin) & (edges[1:] <= end)
        return mask

    def seconds(mask):
        return lengths[mask].sum().item()

    computes, gathers, scatters = covered("compute"), covered("all_gather"), covered("reduce_scatter")
    total, sent = lengths.sum().item(), gathers | scatters
    units = [u for k, u in moments if k == "all_gather"]
    return {
        "computes": seconds(computes) / total,
        "all_gather": seconds(gathers & ~computes) / total,
        "reduce_scatter": seconds(scatters & ~gathers & ~computes) / total,
        "rest": seconds(~sent & ~computes) / total,
        "hidden": seconds(sent & computes) / seconds(sent),
        "unit": max(units, key=lambda u: seconds(covered("all_gather", u) & ~computes)),
    }


# %% build
def build(model):
    blocks = list(model.blocks)
    fully_shard_all = [fully_shard(block) for block in blocks]
    root = fully_shard(model)
    root.set_reshard_after_forward(False, recurse=True)
    root.set_modules_to_forward_prefetch(blocks[:1])
    for i, block in enumerate(fully_shard_all[:-1]):
        block.set_modules_to_forward_prefetch([blocks[i + 1]])
    return root


# %% train_step
def train_step(model, optimizer, micro_batches):
    *first, last = micro_batches
    weight = 1 / len(micro_batches)
    losses = torch.zeros(())
    model.set_reshard_after_backward(False)
    for tokens, targets in first:
        loss = weight * model(tokens, targets)
        loss.backward()
        losses += loss.detach()
    model.set_reshard_after_backward(True)
    loss = weight * model(*last)
    loss.backward()
    losses += loss.detach()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    dist.all_reduce(losses)
    return losses / dist.get_world_size()
