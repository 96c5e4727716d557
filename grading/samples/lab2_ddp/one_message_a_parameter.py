# %% token_ddp
class TokenDDP(nn.Module):
    def __init__(self, module, bucket_cap_mb):
        super().__init__()
        self.module = module
        self.last, self.tokens = True, 0
        for p in module.parameters():
            dist.broadcast(p.detach(), src=0)
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self.reduce)

    def forward(self, *args):
        return self.module(*args)

    @contextmanager
    def no_sync(self):
        self.last = False
        yield
        self.last = True

    def reduce(self, p):
        if self.last:
            dist.all_reduce(p.grad)

    def backward(self, loss_sum, n_tokens):
        loss_sum.backward()
        self.tokens = self.tokens + n_tokens
        if self.last:
            dist.all_reduce(self.tokens)
            for p in self.module.parameters():
                if p.grad is not None:
                    p.grad.div_(self.tokens)
            self.tokens = 0
