# %% zero2
from shardlab.zero import ShardedDataParallel, ZeroRedundancyOptimizer


class Zero2:
    def __init__(self, module, shares, bucket_cap_mb, max_norm, optimizer_class, **defaults):
        self.optimizer = ZeroRedundancyOptimizer(
            module.parameters(), optimizer_class, bucket_cap_mb=bucket_cap_mb, **defaults
        )
        self.engine, self.max_norm = ShardedDataParallel(module, self.optimizer), max_norm

    def backward(self, loss):
        loss.backward()

    def step(self):
        norm = self.optimizer.clip_grad_norm_(self.max_norm)
        if torch.isfinite(norm):
            self.optimizer.step()
        self.optimizer.zero_grad()
        return norm
