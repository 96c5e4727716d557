# %% token_ddp
class TokenDDP(nn.Module):
    def __init__(self, module, bucket_cap_mb):
        super().__init__()
        self.module = module
        for p in module.parameters():
            dist.broadcast(p.detach(), src=0)
        self.last, self.tokens = True, 0

    def forward(self, *args):
        return self.module(*args)

    @contextmanager
    def no_sync(self):
        self.last = False
        yield
        self.last = True

    def backward(self, loss_sum, n_tokens):
        loss_sum.backward()
        self.tokens += n_tokens.item()
        if self.last:
            for p in self.module.parameters():
                if p.grad is not None:
                    p.grad.div_(self.tokens)
            self.tokens = 0
