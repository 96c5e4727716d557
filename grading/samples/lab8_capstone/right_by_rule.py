# %% configure
def configure(model, job):
    return Trainer(model, job).step


class Trainer:
    """What each kind of cluster is short of decides."""

    def __init__(self, model, job):
        self.model, per_node = model, job.network.ranks_per_node
        n_bytes = sum(p.nbytes for p in model.parameters())
        activations = 4 * job.sequences * job.seq_len * 4_000  # bytes of four blocks, some 4 kB a position
        in_a_node = 3 * n_bytes / per_node + 0.7 * n_bytes + activations  # weights, gradients, momentum; one unit whole
        if per_node == 1:  # the card carries everything: gather once a step and reduce once
            self.wrap(init_device_mesh("cpu", (N,)), False)
        elif in_a_node <= job.memory_bytes:
            self.wrap(init_device_mesh("cpu", (N // per_node, per_node), mesh_dim_names=("copy", "shard")), True)
        else:
            self.model.blocks = torch.nn.ModuleList(map(checkpoint_wrapper, model.blocks))
            self.wrap(init_device_mesh("cpu", (N,)), True)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def wrap(self, mesh, reshard):
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(self.model, mesh=mesh)

    def step(self, tokens, targets):
        self.optimizer.zero_grad()
        self.model(tokens, targets).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
