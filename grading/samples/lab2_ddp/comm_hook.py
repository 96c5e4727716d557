# %% token_ddp
from torch.nn.parallel import DistributedDataParallel


class TokenDDP(nn.Module):
    def __init__(self, module, bucket_cap_mb):
        super().__init__()
        self.ddp = DistributedDataParallel(module, bucket_cap_mb=bucket_cap_mb, gradient_as_bucket_view=True)
        self.ddp.register_comm_hook(state=None, hook=self.sum_over_tokens)
        self.tokens = 0

    def forward(self, *args):
        return self.ddp(*args)

    def no_sync(self):
        return self.ddp.no_sync()

    def backward(self, loss_sum, n_tokens):
        self.tokens += n_tokens
        if self.ddp.require_backward_grad_sync:
            self.total, self.tokens = self.tokens, 0
            dist.all_reduce(self.total)
        loss_sum.backward()

    def sum_over_tokens(self, state, bucket):
        summed = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return summed.then(lambda future: future.value()[0].div_(self.total))
