# %% token_ddp
from torch.nn.parallel import DistributedDataParallel


class TokenDDP(nn.Module):
    def __init__(self, module, bucket_cap_mb):
        super().__init__()
        self.ddp = DistributedDataParallel(module, bucket_cap_mb=bucket_cap_mb, gradient_as_bucket_view=True)
        self.counts = []

    def forward(self, *args):
        return self.ddp(*args)

    def no_sync(self):
        return self.ddp.no_sync()

    def backward(self, loss_sum, n_tokens):
        last = self.ddp.require_backward_grad_sync
        self.counts.append(n_tokens)
        loss_sum.backward()
        if last:
            total = torch.stack(self.counts).sum()
            dist.all_reduce(total)
            for p in self.ddp.module.parameters():
                if p.grad is not None:
                    p.grad *= dist.get_world_size() / total
            self.counts = []
