# %% token_ddp
from shardlab.ddp import DDP


class TokenDDP(nn.Module):
    def __init__(self, module, bucket_cap_mb):
        super().__init__()
        self.ddp = DDP(module, bucket_cap_mb=bucket_cap_mb, gradient_as_bucket_view=True)
        self.tokens, self.last = 0, True

    def forward(self, *args):
        return self.ddp(*args)

    @contextmanager
    def no_sync(self):
        self.last = False
        with self.ddp.no_sync():
            yield
        self.last = True

    def backward(self, loss_sum, n_tokens):
        self.tokens = self.tokens + n_tokens
        loss_sum.backward()
        if self.last:
            dist.all_reduce(self.tokens)
            for bucket in self.ddp.buckets:
                bucket.flat.mul_(dist.get_world_size() / self.tokens)
            self.tokens = 0
