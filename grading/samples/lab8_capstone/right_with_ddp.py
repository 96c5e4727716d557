# %% configure
from torch.nn.parallel import DistributedDataParallel


def configure(model, job):
    whole = sum(p.nbytes for p in model.parameters())
    if job.memory_bytes > 5.7 * whole:  # all of the states, and a step's activations
        forward = DistributedDataParallel(model, bucket_cap_mb=0.15, gradient_as_bucket_view=True)
    else:
        forward = model
        k = job.network.ranks_per_node
        roomy = job.memory_bytes > 4 * whole
        mesh = init_device_mesh("cpu", (N // k, k) if roomy else (N,), mesh_dim_names=("copy", "shard")[-1 - roomy :])
        for i in range(len(model.blocks)):
            if not roomy:
                model.blocks[i] = checkpoint_wrapper(model.blocks[i])
            fully_shard(model.blocks[i], mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train_step(tokens, targets):
        forward(tokens, targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return train_step
