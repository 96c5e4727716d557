# %% token_ddp
from torch.nn.parallel import DistributedDataParallel


class TokenDDP(nn.Module):
    def __init__(self, module, bucket_cap_mb):
        super().__init__()
        self.ddp = DistributedDataParallel(module, bucket_cap_mb=bucket_cap_mb, gradient_as_bucket_view=True)

    def forward(self, *args):
        return self.ddp(*args)

    def no_sync(self):
        return self.ddp.no_sync()

    def backward(self, loss_sum, n_tokens):
        (loss_sum / n_tokens.clamp(min=1)).backward()
