# %% largest_ddp_depth
def largest_ddp_depth(budget_bytes, config, micro_batch, seq_len):
    tokens = torch.zeros(micro_batch, seq_len, dtype=torch.long)

    def peak_bytes(n_layers):
        model, optimizer = ddp(Transformer(replace(config, n_layers=n_layers)), 1e-3)
        with MemoryTracker(model, optimizer) as memory:
            for _ in range(2):
                loss = model(tokens, tokens)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        return memory.peak.peak_bytes

    few, more = peak_bytes(3), peak_bytes(4)
    return 1 + 3 + int((budget_bytes - few) / (more - few))  # one too many


# %% shard_and_checkpoint
def shard_and_checkpoint(model, lr):
    every_second = set(model.blocks[::2])
    apply_activation_checkpointing(model, check_fn=lambda module: module in every_second)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=lr)


# %% shard_and_offload
def shard_and_offload(model, lr):
    policy = CPUOffloadPolicy(pin_memory=False)
    for block in model.blocks:
        fully_shard(block, offload_policy=policy)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=lr)


# %% offload_price
def offload_price(config, world_size, link_bytes_per_s, host_memory_bytes_per_s):
    share = 4 * config.n_params / world_size
    root = 4 * (2 * config.vocab_size * config.dim + config.dim) / world_size
    to_device, to_host = 2 * share - root, share
    seconds = (to_device + to_host) / link_bytes_per_s
    return {"to_device_bytes": to_device, "to_host_bytes": to_host, "seconds": seconds}


# %% efficiency
from statistics import median


def efficiency(runs):
    step_s = {run["ranks"]: median(run["step_s"][1:]) for run in runs}
    return {n: step_s[min(step_s)] / s for n, s in step_s.items()}
