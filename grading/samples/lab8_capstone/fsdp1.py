# %% configure
from torch.distributed.fsdp import FullyShardedDataParallel


def configure(model, job):
    wrap = partial(FullyShardedDataParallel, use_orig_params=True, device_id=torch.device("cpu"))
    for i, block in enumerate(model.blocks):
        model.blocks[i] = wrap(block)
    whole = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train_step(tokens, targets):
        whole(tokens, targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return train_step
