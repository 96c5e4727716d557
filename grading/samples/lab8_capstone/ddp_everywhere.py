# %% configure
from torch.nn.parallel import DistributedDataParallel


def configure(model, job):
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.15, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train_step(tokens, targets):
        ddp(tokens, targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return train_step
