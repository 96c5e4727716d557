# %% diagnose
def diagnose(records):
    """Tries each rank: without it, do the others' records fit one program, and where does it leave that program?"""
    for suspect in records:
        program = {}  # (axis, number) -> what the others call
        fits = True
        for rank, calls in records.items():
            for c in calls if rank != suspect else ():
                fits = fits and program.setdefault((c.axis, c.seq), c.call) == c.call
        wrong = [c for c in records[suspect] if program.get((c.axis, c.seq), c.call) != c.call]
        if fits and wrong:
            return suspect, wrong[0].axis, wrong[0].seq
    # Nobody calls anything else, so somebody is missing. Of the calls that lack a rank, which one comes after no other?
    have = {rank: {(c.axis, c.seq) for c in calls} for rank, calls in records.items()}
    lacking, later = {}, set()
    for calls in records.values():
        for c in calls:
            absent = [] if c.finished else [r for r in c.ranks if (c.axis, c.seq) not in have[r]]
            if absent:
                lacking.setdefault((c.axis, c.seq), []).append(absent[0])
    for calls in records.values():
        keys = [(c.axis, c.seq) for c in calls]
        for i, key in enumerate(keys):
            later |= set(keys[i + 1 :]) if key in lacking else set()
    [first] = set(lacking) - later
    return lacking[first][0], *first


# %% repaired_training
def repaired_train(model, optimizer, batches, documents, batch_size, every, max_norm):
    skipped, validation = [], {}
    for step, (tokens, targets) in enumerate(batches):
        loss = model(tokens, targets)
        everyone = [torch.empty_like(loss) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, loss.detach())
        if torch.stack(everyone).isfinite().all():
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
            if (step + 1) % every == 0:
                validation[step] = padded_validation(model, documents, batch_size)
        else:
            skipped.append(step)
    return skipped, validation


def padded_validation(model, documents, batch_size):
    """Every rank has as many documents: what is missing is padding, whose targets don't count."""
    n = dist.get_world_size()
    rest = -len(documents) % n
    targets = torch.cat([documents[:, 1:], documents.new_full((rest, documents.shape[1] - 1), -100)])
    tokens = torch.cat([documents[:, :-1], documents.new_zeros(rest, documents.shape[1] - 1)])
    sums = torch.zeros(2, device=documents.device)
    mine = tokens[dist.get_rank() :: n].split(batch_size), targets[dist.get_rank() :: n].split(batch_size)
    with torch.inference_mode():
        for x, y in zip(*mine, strict=True):
            logits = model(x)
            sums[0] += F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum")
            sums[1] += (y >= 0).sum()
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


# %% differing
def differing(model):
    names, parts, digests = [], [], []
    for name, t in list(model.named_parameters()) + list(model.named_buffers()):
        mesh = getattr(t, "device_mesh", None)
        local = t.to_local() if mesh is not None else t
        at = [c for c, p in zip(mesh.get_coordinate(), t.placements, strict=True) if p.is_shard()] if mesh else []
        raw = bytes(local.detach().cpu().contiguous().reshape(-1).view(torch.uint8).tolist())
        names.append(name)
        parts.append((at or [0])[0])
        digests.append(list(sha256(raw).digest()[:8]))
    mine = torch.tensor([[part, *digest] for part, digest in zip(parts, digests, strict=True)], dtype=torch.uint8)
    mine = mine.to(local_device())
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    rows = torch.stack(everyone).tolist()  # [rank][tensor] -> part, digest
    found = set()
    for i, name in enumerate(names):
        seen = {}
        for rank in rows:
            part, *digest = rank[i]
            if seen.setdefault(part, digest) != digest:
                found.add(name)
    return sorted(found)


# %% repaired_experts
def repaired_experts(model, optimizer, steps, speed):
    for micro_batches in steps:
        optimizer.zero_grad()
        sum(F.mse_loss(model(x), y) for x, y in micro_batches).div(len(micro_batches)).backward()
        optimizer.step()
        mine = torch.stack([layer.load for layer in model.layers])
        everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, mine)
        loads = torch.stack(everyone).sum(0)
        for layer, load in zip(model.layers, loads, strict=True):
            layer.bias.add_(torch.sign(load.mean() - load), alpha=speed)
            layer.load.zero_()


# %% repaired_accumulation
def repaired_accumulating(model, optimizer, steps):
    history = []
    for micro_batches in steps:
        losses, hits = [], []
        for tokens, targets in micro_batches:
            logits = model(tokens)
            losses.append(F.cross_entropy(logits.transpose(1, 2), targets))
            hits.append(torch.eq(logits.detach().argmax(-1), targets).sum())
            (losses[-1] / len(micro_batches)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        history.append((torch.stack(losses).mean().item(), sum(hits).item()))
    return history


# %% checkpoint
class Checkpoint:
    """Everything through torch's distributed checkpoint; random numbers under a name of their own for each rank."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def save(self, run):
        model, optimizer = get_state_dict(run.model, run.optimizer)
        random = [None] * dist.get_world_size()
        cuda = torch.cuda.get_rng_state() if local_device().type == "cuda" else torch.empty(0)
        dist.all_gather_object(random, (torch.get_rng_state(), cuda))
        plain = {"last_epoch": run.scheduler.last_epoch, "epoch": run.samples.epoch, "taken": run.samples.taken}
        plain |= {f"random.{r}": state for r, (state, _) in enumerate(random)}
        plain |= {f"cuda.{r}": state for r, (_, state) in enumerate(random)}
        dcp.save({"model": model, "optimizer": optimizer, "average": run.average}, checkpoint_id=self.folder)
        if dist.get_rank() == 0:
            torch.save(plain, self.folder / "plain.pt")
        dist.barrier()

    def load(self, run):
        model, optimizer = get_state_dict(run.model, run.optimizer)
        parts = {"model": model, "optimizer": optimizer, "average": run.average}
        dcp.load(parts, checkpoint_id=self.folder)
        set_state_dict(run.model, run.optimizer, model_state_dict=parts["model"], optim_state_dict=parts["optimizer"])
        plain = torch.load(self.folder / "plain.pt")
        run.scheduler.last_epoch = plain["last_epoch"]
        run.samples.epoch, run.samples.taken = plain["epoch"], plain["taken"]
        torch.set_rng_state(plain[f"random.{dist.get_rank()}"])
        if local_device().type == "cuda":
            torch.cuda.set_rng_state(plain[f"cuda.{dist.get_rank()}"])
